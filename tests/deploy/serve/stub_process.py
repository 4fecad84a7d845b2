"""The stub model in a process of its own: `python stub_process.py JSON`. Prints its port, and at its end what it opened.

The JSON holds "settings", "limits", "held" (once it listens, steps wait for SIGUSR1) and "files" (watch for files).
"""

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from deploy.serve.stub_model import stub_model
from dynavit.deploy.serve import server
from dynavit.deploy.serve.app import create_app
from dynavit.deploy.serve.limits import Limits
from dynavit.deploy.serve.settings import Settings

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CODE = (".py", ".pyc", ".so", ".egg-link", "/fileno")


def main() -> int:
    options = json.loads(sys.argv[1])
    settings, limits = Settings(port=0, **options.get("settings", {})), Limits(**options.get("limits", {}))
    model = stub_model()
    opened: list[str] = []

    def watch(event: str, words: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = words
            if isinstance(flags, int) and (flags & WRITES or not str(path).endswith(CODE)):
                opened.append(f"open {path} {flags & WRITES}")
        elif event in ("os.mkdir", "os.remove", "os.rename", "tempfile.mkstemp", "tempfile.mkdtemp", "shutil.copyfile"):
            opened.append(f"{event} {words}")

    def started(_: object) -> None:
        model.backend.faulty = True
        if options.get("held"):
            model.backend.gate.clear()
        print(taken.getsockname()[1], flush=True)
        if options.get("files"):
            sys.addaudithook(watch)

    signal.signal(signal.SIGUSR1, lambda *_: model.backend.gate.set())
    taken = server.bind(settings)
    app = create_app(model, settings, limits)
    code = server.run(app, taken, settings, limits, started=started)
    print(json.dumps({"totals": app.state.service.metrics.totals(), "opened": opened}), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
