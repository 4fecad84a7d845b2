"""One process that listens: uvicorn with our protocol, signals, draining, and the codes it ends with.

First SIGTERM or SIGINT: not ready any more, nothing new is admitted, what was admitted is finished, streams end, exit code 0.
Second, or after `drain_time`: 503 to the rest, exit code 0. Executor dead or hanging: 503 to all who wait, exit code 70, so
that a supervisor starts it anew.
"""

import asyncio
import gc
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from ...common.extras import require
from .images import warn_of_bombs_by_error
from .limits import Limits
from .protocol import guarded
from .service import Service
from .settings import Settings

Parser = Literal["auto", "httptools", "h11"]
SOFTWARE_ERROR = 70  # EX_SOFTWARE of sysexits.h
FLUSH = 5  # seconds for answers that are being sent when the server ends

logger = logging.getLogger("dynavit.serve")


def bind(settings: Settings) -> socket.socket:
    """The address, taken before anything is loaded, so that a port in use is told at once. Nobody can connect yet."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, or asyncio leaves Nagle on: 40 ms an answer
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((settings.host, settings.port))
    except OSError as error:
        taken.close()
        reason = error.strerror or str(error)
        raise ValueError(f"cannot listen on {settings.host}, port {settings.port}: {reason}") from error
    return taken


def address(taken: socket.socket) -> str:
    """The URL to open in a browser."""
    host, port = taken.getsockname()[:2]
    return f"http://{_reachable(host) if ':' not in host else f'[{_reachable(host)}]'}:{port}"


def _reachable(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def choose_protocol(parser: Parser, limits: Limits, service: Service, settings: Settings) -> Any:
    """Our protocol for the parser; where uvicorn has no place for it, uvicorn's own, but only on loopback."""
    for name in ("httptools", "h11") if parser == "auto" else (parser,):
        try:
            return guarded(name, limits, service.metrics.slow_clients.inc)
        except ImportError:
            if parser != "auto":
                raise
        except LookupError as error:
            if not settings.is_loopback:
                raise ValueError(f"{error}, so the server listens on loopback only, not on {settings.host}") from error
            logger.warning("%s", error)
            return name
    raise ValueError("neither httptools nor h11 is installed; they come with the extra [serve]")


def run(
    app: Any,
    taken: socket.socket,
    settings: Settings,
    limits: Limits,
    *,
    parser: Parser = "auto",
    started: Callable[[Any], None] = lambda server: None,
) -> int:
    """Serve until a signal; returns the exit code.

    Args:
        taken: from `bind`.
        started: called with the server when connections are accepted.
    """
    uvicorn = require("uvicorn", "serve")
    service: Service = app.state.service
    warn_of_bombs_by_error()
    for name in ("uvicorn.error", "python_multipart"):  # they would log a line for every request that is no HTTP or no form
        logging.getLogger(name).setLevel(logging.ERROR)
    config = uvicorn.Config(
        app,
        http=choose_protocol(parser, limits, service, settings),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=limits.keep_alive,
        timeout_graceful_shutdown=FLUSH,
        h11_max_incomplete_event_size=limits.max_header,
    )
    server = _server_class(uvicorn)(config, service, limits, started)
    service.connections = lambda: len(server.server_state.connections)
    with _lasting_objects():
        server.run(sockets=[taken])
    return server.code


@contextmanager
def _lasting_objects() -> Iterator[None]:
    """What was loaded by now stays to the end, so the garbage collector does not look at it again.

    torch and the model are 430,000 objects. A full collection walked over all of them for 0.3 s, and held up every request
    meanwhile, refusals too. Another thread than the main one does not own the process, and leaves its collector alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _server_class(uvicorn: Any) -> Any:
    class Server(uvicorn.Server):
        """uvicorn's, with draining in place of its own end, and without raising signals again afterwards."""

        def __init__(self, config: Any, service: Service, limits: Limits, started: Callable[[Any], None]) -> None:
            super().__init__(config)
            self.service, self.limits, self.tell_started = service, limits, started
            self.code = 0

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            self.loop, self.hurry, self.draining = asyncio.get_running_loop(), asyncio.Event(), False
            self.service.engine.on_death = self._died
            await super().startup(sockets=sockets)
            self.tell_started(self)

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            if threading.current_thread() is not threading.main_thread():
                yield
                return
            before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

        def handle_exit(self, number: int, frame: Any) -> None:
            self.loop.call_soon_threadsafe(self.end)

        def end(self) -> None:
            """Called by each signal."""
            if self.draining:
                self.hurry.set()
            else:
                self.draining = True
                self.drain_task = self.loop.create_task(self._drain())

        async def _drain(self) -> None:
            logger.info("stopping: %d images to finish", self.service.engine.scheduler.snapshot()["jobs"])
            work = [self.loop.create_task(self.service.drain()), self.loop.create_task(self.hurry.wait())]
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for task in work:
                task.cancel()
            self.service.engine.stop(patience=0.0)  # whoever still waits gets 503, and nobody waits for a long step
            self.should_exit = True

        def _died(self, error: BaseException | None) -> None:
            """The engine has answered everybody already."""
            logger.critical("the executor %s", f"died: {error!r}" if error is not None else "gives no sign of life")
            self.code, self.should_exit = SOFTWARE_ERROR, True

    return Server
