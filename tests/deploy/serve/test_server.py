"""The process around the app, as `dynavit serve` runs it: in the main thread."""

import gc

from deploy.serve.stub_model import stub_model
from dynavit.deploy.serve import server
from dynavit.deploy.serve.app import create_app
from dynavit.deploy.serve.limits import Limits
from dynavit.deploy.serve.settings import Settings


def test_a_collection_while_it_serves_does_not_walk_over_what_was_loaded():
    settings, limits, found = Settings(port=0), Limits(), {}
    app = create_app(stub_model(), settings, limits)
    engine = app.state.service.engine

    def started(running):
        found["walked"] = any(each is engine.__dict__ or each is engine for each in gc.get_objects())
        running.end()

    with server.bind(settings) as taken:
        code = server.run(app, taken, settings, limits, started=started)
    assert (code, found) == (0, {"walked": False})
    assert gc.get_freeze_count() == 0, "the process is as before"


def test_hold_reaches_the_scheduler():
    app = create_app(stub_model(), Settings(port=0, hold=2), Limits())
    assert app.state.service.engine.scheduler.hold == 2
