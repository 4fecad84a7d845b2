"""Faults on the wire: F1 to F3, F27, F28. Raw sockets, both parsers of HTTP."""

import json
import select
import time
from http.client import HTTPResponse
from io import BufferedReader, RawIOBase
from weakref import WeakKeyDictionary, ref

import pytest

from deploy.serve.live import PATIENCE, answer_of, eventually, live
from deploy.serve.stub_model import png
from dynavit.deploy.serve.door import Visit
from dynavit.deploy.serve.limits import Limits

PARSERS = ("httptools", "h11")
# Deadlines and limits are the door's, in front of either parser: httptools, which is taken where it is installed, in every
# default test; h11 by default where what the parser makes of the bytes is the point.
MOSTLY_ONE = ("httptools", pytest.param("h11", marks=pytest.mark.slow))
SMALL = Limits(max_body=64 << 10, max_image=32 << 10)
HURRIED = {"header_time": 0.4, "body_grace": 0.4, "body_time": 2.0}


def head(path="/v1/predict", *lines, method="POST", host="localhost"):
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {host}", *lines, "", ""]).encode()


class Received(RawIOBase):
    """The bytes of a socket, which it does not keep open."""

    def __init__(self, connection):
        self.connection = ref(connection)

    def readable(self):
        return True

    def readinto(self, buffer):
        return self.connection().recv_into(buffer)


class Stays(BufferedReader):
    """One for each socket, also when an answer has been read: the next one may have come with it."""

    def close(self):
        pass

    def makefile(self, mode):
        return self


READERS = WeakKeyDictionary()


def read_answer(connection, method="GET"):
    """(status, headers, JSON) of the next answer on a socket."""
    if connection not in READERS:
        READERS[connection] = Stays(Received(connection))
    response = HTTPResponse(READERS[connection], method=method)
    response.begin()
    return answer_of(response)


def is_closed(connection):
    """Whether the other side has closed; waits for it."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


# ---- F1


@pytest.mark.parametrize("parser", MOSTLY_ONE)
def test_f1_a_body_over_the_limit(parser, monkeypatch):
    """413 within one buffer of the limit, whether the length is told, wrong or not told at all."""
    taken = []
    monkeypatch.setattr(Visit, "receive", _watched(Visit.receive, taken))
    with live(parser=parser, limits=SMALL) as server:
        with server.connect() as honest:  # refused by its header, nothing of it is read
            honest.sendall(head("/v1/predict", "Content-Type: image/png", "Content-Length: 100000000"))
            status, headers, found = read_answer(honest)
            assert (status, found["code"], headers["connection"]) == (413, "body_too_large", "close")
            assert is_closed(honest)
        assert taken == []
        with server.connect() as chunked:
            chunked.sendall(head("/v1/predict", "Content-Type: image/png", "Transfer-Encoding: chunked"))
            piece = b"1000\r\n" + bytes(0x1000) + b"\r\n"
            try:
                for _ in range(4096):  # 16 MB
                    chunked.sendall(piece)
            except OSError:
                pass  # it was closed on us, as it should be
            else:
                pytest.fail("the server read 16 MB of a body that may have 64 kB")
        assert max(taken) <= SMALL.max_body + (256 << 10)  # one buffer of the event loop
        with server.connect() as lying:  # more than was told: the rest is no request
            lying.sendall(head("/v1/predict", "Content-Type: image/png", "Content-Length: 4") + b"abcd" + b"\0" * 100)
            assert read_answer(lying)[0] in (400, 415)  # whichever is noticed first
            assert is_closed(lying)
        with server.connect() as lying:  # less than was told, and gone
            lying.sendall(head("/v1/predict", "Content-Type: image/png", "Content-Length: 1000") + b"abcd")
        eventually(lambda: server.service.connections() == 0 and _door(server).held == 0)
        assert server.predict(png())[0] == 200


def _watched(receive, taken):
    async def watched(self):
        try:
            return await receive(self)
        finally:
            taken.append(self.bytes)

    return watched


def _door(server):
    layer = server.app.middleware_stack
    while type(layer).__name__ != "Door":
        layer = layer.app
    return layer


def test_f1_all_bodies_together_are_bounded():
    with live(limits=Limits(max_body=64 << 10, max_image=32 << 10, max_bodies=96 << 10)) as server:
        held = [server.connect() for _ in range(2)]
        for connection in held:
            connection.sendall(head("/v1/predict", "Content-Type: image/png", "Content-Length: 60000") + bytes(40_000))
        eventually(lambda: _door(server).held == 80_000)
        with server.connect() as late:
            late.sendall(head("/v1/predict", "Content-Type: image/png", "Content-Length: 60000") + bytes(60_000))
            status, headers, found = read_answer(late)
            assert (status, found["code"]) == (503, "bodies_full") and headers["retry-after"] == "1"
        for connection in held:
            connection.close()
        eventually(lambda: _door(server).held == 0)
        assert server.predict(png())[0] == 200


# ---- F2


def trickle(parser, count, limits):
    """`count` connections, of which a third trickles headers, a third bodies, and a third says nothing; what each was told."""
    body = head("/v1/predict", "Content-Type: image/png", "Content-Length: 100000")
    with live(parser=parser, limits=limits) as server:
        patient, request = (
            server.connect(),
            head("/v1/predict", "Content-Type: image/png", f"Content-Length: {len(png())}") + png(),
        )
        slow = {}
        for at in range(count):
            connection = server.connect()
            connection.sendall((b"POST /v1/pre", body, b"")[at % 3])
            slow[connection] = at
        told, healthy, start = dict.fromkeys(range(count), b""), [], time.monotonic()
        while slow and time.monotonic() - start < 3 * PATIENCE:
            patient.sendall(request)
            healthy.append(read_answer(patient)[0])
            readable, _, _ = select.select(list(slow), [], [], 0.1)
            for connection in list(slow):
                try:
                    if connection in readable:
                        if not (got := connection.recv(4096)):
                            del slow[connection]
                            connection.close()
                            continue
                        told[slow[connection]] += got
                    elif slow[connection] % 3 != 2:
                        connection.send(b"x")
                except OSError:
                    del slow[connection]
                    connection.close()
        assert not slow, f"{len(slow)} slow connections are still open"
        assert set(healthy) == {200}
        patient.close()
        eventually(lambda: server.totals()["slow_clients_total"] == 2 * (count // 3))
        eventually(lambda: server.service.connections() == 0)
        return told


@pytest.mark.parametrize("parser", PARSERS)
def test_f2_headers_and_bodies_that_trickle(parser):
    told = trickle(parser, 9, Limits(**HURRIED))
    for at, code in ((0, "slow_header"), (1, "slow_body")):
        plain = json.loads(told[at].partition(b"\r\n\r\n")[2])
        assert told[at].startswith(b"HTTP/1.1 408 ") and set(plain) == {"error", "code", "request_id"} and plain["code"] == code
    assert [got == b"" for got in told.values()] == [False, False, True] * 3  # one that says nothing is only closed


@pytest.mark.slow
@pytest.mark.parametrize("parser", PARSERS)
def test_f2_five_hundred_that_trickle(parser):
    trickle(parser, 498, Limits(header_time=8.0, body_grace=8.0, body_time=10.0))


@pytest.mark.parametrize("parser", MOSTLY_ONE)
def test_f2_a_slow_second_request_on_the_same_connection(parser):
    """The next header has a deadline of its own, and resting does not count as slow."""
    with live(parser=parser, limits=Limits(**HURRIED)) as server, server.connect() as connection:
        for _ in range(2):
            connection.sendall(head("/v1/predict", "Content-Type: image/png", f"Content-Length: {len(png())}") + png())
            assert read_answer(connection)[0] == 200
            time.sleep(0.6)  # longer than a header may take
        connection.sendall(b"GET /v1/in")
        assert b"slow_header" in connection.recv(4096) and is_closed(connection)
        assert server.totals()["slow_clients_total"] == 1


@pytest.mark.parametrize("parser", MOSTLY_ONE)
def test_f2_a_steady_body_is_not_slow(parser):
    """A body that takes longer than the grace, but comes at the rate that is asked for."""
    image = png() + bytes(30_000)
    with live(parser=parser, limits=Limits(**HURRIED, body_rate=1_000)) as server, server.connect() as connection:
        connection.sendall(head("/v1/predict", "Content-Type: image/png", f"Content-Length: {len(image)}"))
        for at in range(0, len(image), 3_000):
            connection.sendall(image[at : at + 3_000])
            time.sleep(0.06)
        assert read_answer(connection)[0] == 200 and server.totals()["slow_clients_total"] == 0


@pytest.mark.parametrize("parser", MOSTLY_ONE)
def test_f2_a_body_below_the_rate(parser):
    """Long before its time is over."""
    limits = Limits(body_grace=0.3, body_time=10 * PATIENCE, total_time=10 * PATIENCE, body_rate=20_000)
    with live(parser=parser, limits=limits) as server, server.connect() as connection:
        connection.sendall(head("/v1/predict", "Content-Type: image/png", "Content-Length: 100000") + bytes(2_000))
        assert b"slow_body" in connection.recv(4096)


@pytest.mark.parametrize("parser", PARSERS)
def test_f2_a_header_without_end(parser):
    with live(parser=parser, limits=Limits(max_header=20_000, max_path=5_000)) as server, server.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 30_000)
        got = connection.recv(65_536)
        assert got.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 ")) and is_closed(connection)
        assert json.loads(got.partition(b"\r\n\r\n")[2])["code"] in ("header_too_large", "http")


@pytest.mark.parametrize("parser", MOSTLY_ONE)
def test_f2_a_second_request_that_came_with_the_first_has_deadlines_too(parser):
    """Its header has arrived before its turn came; its body does not."""
    with live(parser=parser, limits=Limits(**HURRIED)) as server, server.connect() as connection:
        connection.sendall(
            head("/v1/curve", method="GET") + head("/v1/predict", "Content-Type: image/png", "Content-Length: 99")
        )
        assert read_answer(connection)[0] == 200
        status, _, found = read_answer(connection)
        assert (status, found["code"]) == (408, "slow_body") and is_closed(connection)
        assert server.totals()["slow_clients_total"] == 1


def test_f2_a_second_request_that_came_with_the_first_is_no_rest():
    """A connection on which the server works is not closed to make room."""
    image = head("/v1/predict", "Content-Type: image/png", f"Content-Length: {len(png())}") + png()
    with live(limits=Limits(max_connections=3, max_streams=1)) as server, server.connect() as working:
        server.backend.gate.clear()
        working.sendall(head("/v1/curve", method="GET") + image)
        eventually(lambda: server.snapshot()["running"] == 1)
        idle = [server.connect() for _ in range(6)]
        eventually(lambda: len([1 for each in idle if _is_closed_now(each)]) >= 4)
        server.backend.gate.set()
        assert [read_answer(working)[0] for _ in range(2)] == [200, 200]
        for connection in idle:
            connection.close()


def _is_closed_now(connection):
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable)  # nothing was asked, so there is nothing to read but the end


@pytest.mark.parametrize("parser", MOSTLY_ONE)
def test_f2_a_client_that_does_not_read(parser):
    """Pages of 75 kB, two hundred of them, and nobody takes them."""
    with live(parser=parser, limits=Limits(send_time=0.3)) as server, server.connect() as connection:
        connection.sendall(head("/", method="GET") * 200)
        eventually(lambda: server.totals()["slow_clients_total"] == 1)
        eventually(lambda: server.service.connections() == 0)
        assert server.predict(png())[0] == 200


@pytest.mark.parametrize("parser", MOSTLY_ONE)
def test_f2_a_header_that_is_too_large_though_it_came_at_once(parser):
    with live(parser=parser, limits=Limits(max_header=20_000, max_path=5_000)) as server, server.connect() as connection:
        connection.sendall(head("/v1/curve", *[f"X-{at}: {'x' * 1000}" for at in range(30)], method="GET"))
        assert read_answer(connection)[2]["code"] in ("header_too_large", "http")


# ---- Requests that are seldom, and right or wrong


@pytest.mark.parametrize("parser", MOSTLY_ONE)
def test_head_is_get_without_a_body(parser):
    with live(parser=parser) as server, server.connect() as connection:
        for path, status in (("/", 200), ("/v2/health/ready", 200), ("/v1/info", 200), ("/none", 404), ("/v1/stream", 405)):
            connection.sendall(head(path, method="HEAD"))
            found = read_answer(connection, "HEAD")
            assert found[0] == status and int(found[1]["content-length"]) > 20 and found[2] == b""


@pytest.mark.parametrize("parser", MOSTLY_ONE)
def test_a_client_that_waits_before_its_body(parser):
    """Expect: 100-continue, as curl does with large files; also where the answer is no."""
    lines = ("Content-Type: image/png", "Expect: 100-continue")
    with live(parser=parser) as server:
        with server.connect() as connection:
            connection.sendall(head("/v1/predict", *lines, f"Content-Length: {len(png())}"))
            assert connection.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(png())
            assert read_answer(connection)[0] == 200
        with server.connect() as connection:
            connection.sendall(head("/v1/predict", *lines, "Content-Length: 99999999"))
            assert read_answer(connection)[0] == 413


@pytest.mark.parametrize("parser", PARSERS)
def test_a_body_behind_an_offer_of_another_protocol(parser):
    """httptools takes what follows for the other protocol's: the image would be empty, or its bytes the next request."""
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")
    with live(parser=parser) as server:
        with server.connect() as connection:
            connection.sendall(head("/v1/predict", *offer, f"Content-Length: {len(png())}", "Content-Type: image/png") + png())
            status, headers, found = read_answer(connection)
            assert (status, found["code"], headers["connection"]) == (400, "upgrade", "close") and is_closed(connection)
        with server.connect() as connection:
            connection.sendall(head("/v1/curve", *offer, method="GET"))
            assert read_answer(connection)[0] == 200


# ---- F3


def rest(server, count):
    """Open so many connections that do nothing; real requests in between are answered."""
    idle, statuses = [], []
    for at in range(count):
        idle.append(server.connect())
        if at % 20 == 19:
            statuses.append(server.predict(png())[0])
    assert set(statuses) == {200}
    eventually(lambda: server.service.connections() <= server.limits.max_connections)
    for connection in idle:
        connection.close()


@pytest.mark.parametrize("parser", MOSTLY_ONE)
def test_f3_idle_connections_are_no_load(parser):
    few = Limits(max_connections=30, max_streams=2)
    with live(parser=parser, limits=few) as server, server.connect() as used:  # rests, too, but has been used before
        used.sendall(head("/v2/health/ready", method="GET"))
        assert read_answer(used)[0] == 200
        rest(server, 60)
        assert is_closed(used)  # it rested longest


@pytest.mark.slow
def test_f3_a_thousand_idle_connections():
    with live() as server:
        rest(server, 1000)


def test_f3_where_all_are_busy_a_new_one_is_refused():
    patient = {
        "header_time": 10 * PATIENCE,
        "body_grace": 10 * PATIENCE,
        "body_time": 10 * PATIENCE,
        "total_time": 10 * PATIENCE,
    }
    with live(limits=Limits(max_connections=3, max_streams=1, **patient)) as server:
        busy = [server.connect() for _ in range(3)]
        for connection in busy:
            connection.sendall(head("/v1/predict", "Content-Type: image/png", "Content-Length: 2") + b"x")
        eventually(lambda: _door(server).held == 3)
        with server.connect() as fourth:
            assert is_closed(fourth)
        for connection in busy:
            connection.sendall(b"x")
            assert read_answer(connection)[0] == 415
            connection.close()


# ---- F27


def test_f27_a_wrong_host_and_a_foreign_origin():
    with live() as server:
        for host in ("evil.example", "localhost.evil.example", "", "127.0.0.1@evil.example", "[::2]"):
            with server.connect() as connection:
                connection.sendall(head("/v1/info", method="GET", host=host))
                assert read_answer(connection)[2]["code"] == "host"
        for pair in (("localhost", "evil.example"), ("evil.example", "localhost")):
            with server.connect() as connection:
                connection.sendall("GET /v1/info HTTP/1.1\r\nHost: {}\r\nHost: {}\r\n\r\n".format(*pair).encode())
                assert read_answer(connection)[0] == 400
        for host in ("localhost", "LOCALHOST:80", "127.0.0.1", "[::1]:1"):
            assert server.ask("GET", "/v1/info", headers={"Host": host})[0] == 200
        foreign = {"Origin": "http://evil.example"}
        asks = {**foreign, "Access-Control-Request-Method": "POST"}
        for status, headers, _ in (
            server.ask("GET", "/v1/info", headers=foreign),
            server.ask("OPTIONS", "/v1/predict", headers=asks),
            server.predict(png(), **foreign),
        ):
            assert not [name for name in headers if name.lower().startswith("access-control")]
            assert status in (200, 405)


def test_f27_origins_that_were_named():
    page = "https://page.example"
    with live(origins=page, hosts="model.example") as server:
        assert server.ask("GET", "/v1/info", headers={"Host": "model.example"})[0] == 200
        _, headers, _ = server.predict(png(), Origin=page)
        assert headers["access-control-allow-origin"] == page and headers["vary"] == "Origin"
        asks = {"Origin": page, "Access-Control-Request-Method": "POST"}
        status, headers, _ = server.ask("OPTIONS", "/v1/predict", headers=asks)
        assert status == 204 and "POST" in headers["access-control-allow-methods"]
        assert "access-control-allow-origin" not in server.predict(png(), Origin=page + ".evil")[1]


# ---- F28


PATHS = (
    "/v2/models/../../x",
    "/v2/models/%2e%2e/%2e%2e/etc/passwd",
    "/v2/models/..%2f..%2fetc%2fpasswd/ready",
    "/v2/models/stub%00/ready",
    "/page.html",
    "//etc/passwd",
    "/v1/../v1/info/..",
    "/%ff%fe",
)


@pytest.mark.parametrize("parser", PARSERS)
def test_f28_path_games(parser):
    """That no file is touched is seen in `test_faults_process.py`."""
    with live(parser=parser) as server:
        for path in PATHS:
            with server.connect() as connection:
                connection.sendall(head(path, method="GET"))
                status, _, found = read_answer(connection)
                assert status in (400, 404) and set(found) <= {"error", "code", "hint", "request_id"}, path
                assert "passwd" not in found["error"]
        with server.connect() as connection:
            connection.sendall(head("/" + "x" * 65_536, method="GET"))
            assert read_answer(connection)[2]["code"] == "path_too_long"
        assert server.ask("GET", "/v1/info?" + "x" * 9_000)[0] == 414
        with server.connect() as connection:
            connection.sendall(b"\x16\x03\x01 hello TLS\r\n\r\n")
            status, _, found = read_answer(connection)
            assert (status, found["code"]) == (400, "http") and is_closed(connection)
