"""A real server on a real socket, loopback only, in a thread of the test; and a client that sends any bytes."""

import asyncio
import json
import socket
import threading
import time
from contextlib import contextmanager
from http.client import HTTPConnection

from deploy.serve.stub_model import stub_model
from dynavit.deploy.serve import server
from dynavit.deploy.serve.app import create_app
from dynavit.deploy.serve.limits import Limits
from dynavit.deploy.serve.settings import Settings

PATIENCE = 60.0  # seconds, for a machine that is busy with other things; whatever takes longer hangs


class Live:
    """A running server."""

    def __init__(self, model, settings, limits):
        self.model, self.app, self.settings, self.limits = model, create_app(model, settings, limits), settings, limits
        self.service = self.app.state.service
        self.port = 0

    @property
    def backend(self):
        return self.model.backend

    def totals(self):
        return self.service.metrics.totals()

    def snapshot(self):
        return self.call(self.service.engine.scheduler.snapshot)

    def call(self, function):
        """In the event loop's thread."""

        async def there():
            return function()

        return asyncio.run_coroutine_threadsafe(there(), self.server.loop).result(PATIENCE)

    def connect(self):
        """A plain socket."""
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    def ask(self, method, path, body=None, headers=None, timeout=PATIENCE):
        """(status, headers, JSON or bytes) of one request on a connection of its own."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, headers or {})
            return answer_of(connection.getresponse())
        finally:
            connection.close()

    def predict(self, image, query="", **headers):
        return self.ask("POST", f"/v1/predict{query}", image, {"Content-Type": "image/png", **headers})

    def let_time_pass(self, seconds):
        """For images that have been admitted: their deadlines come now."""
        engine = self.service.engine
        self.call(lambda: engine._deliver(engine.scheduler.tick(engine.clock() + seconds)))

    def settled(self):
        """Wait until no image is on its way."""
        eventually(lambda: self.snapshot()["jobs"] == 0)


def answer_of(response):
    body = response.read()
    kind = response.headers.get("Content-Type", "")
    return response.status, dict(response.headers), json.loads(body) if body and kind.startswith("application/json") else body


@contextmanager
def live(model=None, *, parser="httptools", limits=None, explainer=None, **settings):
    """A server with the stub model, or another."""
    model = model or stub_model()
    running = Live(model, Settings(port=0, **settings), limits or Limits())
    running.service.explainer = explainer
    if hasattr(model.backend, "faulty"):
        model.backend.faulty = True
    taken = server.bind(running.settings)
    running.port = taken.getsockname()[1]
    ready = threading.Event()

    def started(it):
        running.server = it
        ready.set()

    def serve():
        running.code = server.run(running.app, taken, running.settings, running.limits, parser=parser, started=started)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(PATIENCE)
    try:
        yield running
    finally:
        if hasattr(model.backend, "gate"):
            model.backend.gate.set()
        running.server.loop.call_soon_threadsafe(running.server.end)
        thread.join(PATIENCE)
        taken.close()
        assert not thread.is_alive()


def eventually(condition, patience=PATIENCE):
    """Wait for something that has to happen soon."""
    waiting = threading.Event()
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if condition():
            return
        waiting.wait(0.01)
    raise AssertionError(f"it did not happen within {patience} s")


def in_background(count, work):
    """Results of work(0), ..., work(count - 1), each in a thread; a function that waits for them."""
    found = [None] * count

    def one(at):
        found[at] = work(at)

    threads = [threading.Thread(target=one, args=(at,), daemon=True) for at in range(count)]
    for thread in threads:
        thread.start()

    def results():
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        return found

    return results
