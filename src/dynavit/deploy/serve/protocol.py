"""A deadline for the arrival of requests and for the reading of answers, and a cap on connections, in uvicorn's protocols.

An application runs only after a request's header was read, so it cannot stop a client that sends one byte a second, and uvicorn
has no such limit. Here a timer runs while a header or a body arrives, and another while an answer lies unread. Connections that
rest are no load: beyond the cap the one that rested longest is closed.

This uses things of uvicorn that it does not promise (`HOOKS`). `guarded` checks for them, and without them the server
refuses to listen beyond loopback.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from .limits import Limits
from .problems import Problem

HOOKS = (
    *("connection_made", "connection_lost", "data_received", "on_response_complete", "send_400_response"),
    *("pause_writing", "resume_writing"),
)
CHECK = 1.0  # seconds between two looks at how fast a body arrives


def guarded(parser: str, limits: Limits, on_slow: Callable[[], None]) -> type[asyncio.Protocol]:
    """uvicorn's protocol with this parser ("httptools" or "h11") under these limits.

    Raises:
        ImportError: the parser is not installed.
        LookupError: this version of uvicorn has no such hooks.
    """
    base: Any
    if parser == "httptools":
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as base
    else:
        from uvicorn.protocols.http.h11_impl import H11Protocol as base
    if missing := [name for name in HOOKS if not callable(getattr(base, name, None))]:
        raise LookupError(f"uvicorn's {base.__name__} has no {', '.join(missing)}; arrivals of requests cannot be timed")
    resting: dict[Any, None] = {}  # connections between requests, the longest rest first

    class Guarded(base):
        """One connection.

        `cycle` is uvicorn's name for a request whose header has arrived; `more_body` says that its body has not.
        """

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._timer: asyncio.TimerHandle | None = None
            self._unread: asyncio.TimerHandle | None = None
            self._body_of: Any = None  # the cycle whose body is timed
            self._since, self._got = 0.0, 0
            self._heard, self._in_header = False, True
            if len(self.connections) > limits.max_connections and not _make_room(resting):
                transport.abort()
                return
            resting[self] = None
            self._arm(limits.header_time, self._header_late)

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            self._disarm_unread()
            resting.pop(self, None)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            resting.pop(self, None)
            self._heard = True
            self._got += len(data)
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before:  # a header is complete
                self._in_header = False
            if self._follow_cycle():
                return
            if not self._in_header:  # the first bytes of the next request
                self._in_header, self._got = True, len(data)
                self._arm(limits.header_time, self._header_late)
            if self._got > limits.max_header:
                self._close(431, "header_too_large", f"the header of a request may have {limits.max_header} bytes")

        def on_response_complete(self) -> None:
            """uvicorn begins with the next request, if one has been sent meanwhile."""
            super().on_response_complete()
            if not self._follow_cycle():
                self._disarm()
                resting[self] = None

        def _follow_cycle(self) -> bool:
            """Time the body of the present request, if it is still arriving; False: there is no request."""
            if self.transport.is_closing():
                self._disarm()
                return True
            if self.cycle is None or self.cycle.response_complete:
                return False
            if not self.cycle.more_body:
                self._disarm()
            elif self.cycle is not self._body_of:
                self._body_of, self._since, self._got = self.cycle, time.monotonic(), 0
                self._arm(min(limits.body_grace, limits.body_time), self._look_at_body)
            return True

        def pause_writing(self) -> None:
            """The client does not read as fast as it is answered."""
            super().pause_writing()
            self._disarm_unread()
            self._unread = self.loop.call_later(limits.send_time, self._not_read)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._disarm_unread()

        def _not_read(self) -> None:
            on_slow()
            self.transport.abort()

        def _look_at_body(self) -> None:
            elapsed = time.monotonic() - self._since
            if not self.cycle.more_body or self.cycle.response_complete:
                return
            stalled = self._got < limits.body_rate * elapsed and not self.flow.read_paused
            if stalled or elapsed >= limits.body_time:
                self._late("slow_body", "the body of the request did not arrive in time")
            else:
                self._arm(min(CHECK, limits.body_time - elapsed), self._look_at_body)

        def _header_late(self) -> None:
            self._late("slow_header", "the header of the request did not arrive in time")

        def _late(self, code: str, error: str) -> None:
            if self._heard and not self.transport.is_closing():  # one that never sent anything is only closed
                on_slow()
                self._close(408, code, error)
            else:
                self.transport.close()

        def on_headers_complete(self) -> None:
            """httptools calls it. Up to 0.7.1 it counts the letters of a path in 16 bits: 65,537 of them are one to it."""
            if len(self.url) > 0xFFFF:
                self.send_400_response("")
            else:
                super().on_headers_complete()

        def send_400_response(self, msg: str) -> None:
            """What uvicorn answers to something that is not HTTP, in our shape. httptools takes no path of 64 kB."""
            if len(getattr(self, "url", b"")) > limits.max_path:
                self._close(414, "path_too_long", f"a path may have {limits.max_path} letters")
            else:
                self._close(400, "http", "this is not a request of HTTP/1.1")

        def _close(self, status: int, code: str, error: str) -> None:
            """Answer and close. An application that waits for the rest learns that its client has gone."""
            self._disarm()
            if not self.transport.is_closing():
                self.transport.write(on_the_wire(Problem(status, code, error)))
                self.transport.close()

        def _arm(self, seconds: float, then: Callable[[], None]) -> None:
            self._disarm()
            self._timer = self.loop.call_later(seconds, then)

        def _disarm_unread(self) -> None:
            if self._unread is not None:
                self._unread.cancel()
                self._unread = None

        def _disarm(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Guarded


def _make_room(resting: dict[Any, None]) -> bool:
    """Close the connection that has rested longest."""
    for connection in resting:
        del resting[connection]
        if connection.transport.get_write_buffer_size():  # an answer that it does not read would keep it open
            connection.transport.abort()
        else:
            connection.transport.close()
        return True
    return False


def on_the_wire(problem: Problem) -> bytes:
    """An answer that no application writes."""
    body = json.dumps(problem.body(secrets.token_hex(8))).encode()
    lines = [
        f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
