"""What every request passes before its route, and every answer on its way out.

Ids, the length of the path, the header Host, tokens, the size of the body while it arrives, one shape of errors, headers
against misuse in browsers, and the count of requests. Plain ASGI, so that nothing is buffered and a client that has gone is
noticed.
"""

import asyncio
import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, TypeVar

from .limits import Limits
from .metrics import Metrics
from .problems import Problem, internal, refused
from .settings import Settings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Found = TypeVar("Found")

OPEN = frozenset({"/", "/openapi.json", "/v2/health/live", "/v2/health/ready"})
ADMIN = frozenset({("PUT", "/v1/budget")})
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
LINGER = 1.0  # seconds that an unread body is thrown away, so that the client gets to see why
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
NO_PAGE = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
CLIENT_GONE = 499  # in metrics and logs; nobody is left to read it

logger = logging.getLogger("dynavit.serve")


class ClientGone(Exception):
    """The client has closed its connection."""


class Door:
    """Middleware. Routes find the `Visit` of their request in scope["state"]["visit"]."""

    def __init__(self, app: Callable[..., Awaitable[None]], settings: Settings, limits: Limits, metrics: Metrics) -> None:
        self.app, self.limits, self.metrics = app, limits, metrics
        self.keys, self.admin_keys = settings.keys(), settings.admin_keys()
        self.hosts, self.origins = settings.allowed_hosts, settings.allowed_origins
        self.metrics_open, self.log_requests = settings.metrics_open, settings.log_requests
        self.held = 0  # bytes of bodies in memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        visit = Visit(self, scope, receive, send)
        scope.setdefault("state", {})["visit"] = visit
        try:
            if not await self._preflight(visit):
                self._check(visit)
                visit.scope = _as_get(scope)
                await self.app(visit.scope, visit.receive, visit.send)
        except Problem as problem:
            await visit.fail(problem)
        except ClientGone:
            visit.status = CLIENT_GONE
        except Exception:
            logger.exception("%s: %s %s failed", visit.id, scope["method"], visit.route)
            await visit.fail(internal())
        finally:
            self.held -= visit.bytes
            seconds = time.perf_counter() - visit.start
            self.metrics.requests.labels(visit.route, visit.status).inc()
            self.metrics.request_seconds.labels(visit.route).observe(seconds)
            if self.log_requests:
                words = (visit.id, scope["method"], visit.route, visit.status, visit.bytes, 1e3 * seconds)
                logger.info("%s %s %s %s %d bytes %.1f ms", *words)

    def _check(self, visit: "Visit") -> None:
        scope = visit.scope
        length = len(scope["raw_path"]) + len(scope["query_string"])
        if length > self.limits.max_path:
            raise Problem(414, "path_too_long", f"the path has {length} letters, at most {self.limits.max_path} are taken")
        header = sum(len(name) + len(value) for name, value in scope["headers"])
        if header > self.limits.max_header:
            raise Problem(431, "header_too_large", f"the header of a request may have {self.limits.max_header} bytes")
        named = [value for name, value in scope["headers"] if name == b"host"] or [b""]
        if self.hosts is not None and not all(_host_name(value) in self.hosts for value in named):
            raise Problem(
                400, "host", "the header Host names no host that this server answers for", hint="dynavit serve --hosts NAME"
            )
        announced = visit.headers.get(b"content-length", b"")
        if announced.isdigit() and int(announced) > self.limits.max_body:
            raise _too_large(self.limits)
        if b"upgrade" in visit.headers and not visit.complete:  # a parser may take the body for the other protocol's
            raise Problem(400, "upgrade", "a request with a body cannot change the protocol", hint="HTTP/1.1 without Upgrade")
        if visit.headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
            raise Problem(
                415,
                "content_encoding",
                "a compressed body is not taken",
                hint="send it without Content-Encoding",
                headers={"Accept-Encoding": "identity"},
            )
        key = _key(visit.headers.get(b"authorization", b""))
        if (scope["method"], scope["path"]) in ADMIN:
            if not self.admin_keys:
                raise _unauthorised("no admin token is set, so the budget cannot be changed", "--admin-token-file FILE")
            if not _among(key, self.admin_keys):
                raise _unauthorised("this needs the admin token", "the header Authorization: Bearer TOKEN")
        elif self.keys and not self._is_open(scope["path"]) and not _among(key, self.keys | self.admin_keys):
            raise _unauthorised("a token is needed, and this is none of them", "the header Authorization: Bearer TOKEN")
        # Who shares one token is told apart by address, as everybody is where there is no token.
        address = (scope.get("client") or ("",))[0]
        visit.client = key.hex() if len(self.keys) > 1 and _among(key, self.keys) else address

    def _is_open(self, path: str) -> bool:
        return path in OPEN or (self.metrics_open and path == "/metrics")

    async def _preflight(self, visit: "Visit") -> bool:
        """Answer a browser that asks whether a page of another origin may use this server."""
        origin = visit.headers.get(b"origin", b"").decode("latin-1")
        if origin and ("*" in self.origins or origin in self.origins):
            visit.extra = [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"Origin")]
            if visit.scope["method"] == "OPTIONS" and b"access-control-request-method" in visit.headers:
                visit.extra += [
                    (b"access-control-allow-methods", b"GET, POST, PUT"),
                    (b"access-control-allow-headers", b"authorization, content-type, x-request-id"),
                    (b"access-control-max-age", b"600"),
                ]
                await visit.answer(204, b"", [])
                return True
        return False


class Visit:
    """One request on its way through: its id, its client, and how much of it has arrived."""

    def __init__(self, door: Door, scope: Scope, receive: Receive, send: Send) -> None:
        self.door, self.scope, self._receive, self._send = door, scope, receive, send
        self.start = time.perf_counter()
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        asked = self.headers.get(b"x-request-id", b"").decode("latin-1")
        self.id = asked if REQUEST_ID.fullmatch(asked) else secrets.token_hex(8)
        self.client = ""
        self.extra: list[tuple[bytes, bytes]] = []
        self.bytes, self.status = 0, 0
        announced = self.headers.get(b"content-length", b"0")
        self.complete = announced == b"0" and b"transfer-encoding" not in self.headers  # nothing of the body is left
        self.complete_at = time.monotonic()

    @property
    def route(self) -> str:
        """The pattern that matched, never the path itself: labels of metrics have to be few."""
        return getattr(self.scope.get("route"), "path", None) or "none"

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self.bytes += size
            self.door.held += size
            if self.bytes > self.door.limits.max_body:
                raise _too_large(self.door.limits)
            if self.door.held > self.door.limits.max_bodies:
                raise refused("bodies_full", 1.0)
            if not message.get("more_body", False):
                self.complete, self.complete_at = True, time.monotonic()
        return message

    async def body(self) -> bytes:
        """All of it, at most `max_body` bytes."""
        parts = []
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            if self.complete:
                return b"".join(parts)

    async def unless_gone(self, work: Coroutine[Any, Any, Found]) -> Found:
        """The result of some work, which is cancelled when the client goes away. The body has been read before."""
        task = asyncio.create_task(work)
        gone = asyncio.create_task(self._gone())
        try:
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise ClientGone
        finally:
            gone.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))  # its images are counted before the request ends

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", []), *self._own_headers(message.get("headers", []))]
        await self._send(message)

    def _own_headers(self, given: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        names = {name.lower() for name, _ in given}
        own = [*HEADERS, NO_PAGE, (b"x-request-id", self.id.encode()), *self.extra]
        if not self.complete:
            own.append((b"connection", b"close"))  # what is left of the body would be taken for the next request
        return [(name, value) for name, value in own if name not in names]

    async def fail(self, problem: Problem) -> None:
        """The answer to a request that went wrong, unless one has begun already."""
        if self.status:
            return
        body = json.dumps(problem.body(self.id)).encode()
        headers = [(name.lower().encode(), value.encode()) for name, value in problem.headers.items()]
        await self.answer(problem.status, body, [(b"content-type", b"application/json"), *headers])

    async def answer(self, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        if status != 204:
            headers = [(b"content-length", str(len(body)).encode()), *headers]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        if not self.complete:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            body = b""
            await self._throw_away_the_rest()
        await self._send({"type": "http.response.body", "body": body})

    async def _throw_away_the_rest(self) -> None:
        """Closing a connection with unread bytes resets it, and the client would not see the answer."""
        left = self.door.limits.max_body
        try:
            async with asyncio.timeout(LINGER):
                more = True
                while more and left > 0:
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    more = message["type"] == "http.request" and message.get("more_body", False)
        except TimeoutError:
            pass


def _as_get(scope: Scope) -> Scope:
    """HEAD is answered like GET; the server leaves the body out. A stream has no end to be left out."""
    return {**scope, "method": "GET"} if scope["method"] == "HEAD" and scope["path"] != "/v1/stream" else scope


def _host_name(value: bytes) -> str:
    """
    >>> _host_name(b"LocalHost:8000"), _host_name(b"[::1]:80"), _host_name(b"evil.example")
    ('localhost', '[::1]', 'evil.example')
    """
    text = value.decode("latin-1").lower()
    return re.sub(r":\d*$", "", text)


def _key(value: bytes) -> bytes:
    scheme, _, key = value.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _among(key: bytes, keys: frozenset[bytes]) -> bool:
    """In a time that says nothing about the keys."""
    return sum(hmac.compare_digest(key, known) for known in keys) > 0


def _too_large(limits: Limits) -> Problem:
    return Problem(413, "body_too_large", f"a request may have {limits.max_body} bytes")


def _unauthorised(error: str, hint: str) -> Problem:
    return Problem(401, "unauthorised", error, hint=hint, headers={"WWW-Authenticate": "Bearer"})
