"""Faults of clients and load: F7 to F12, F17, F23, F29, F30, and the law that every image has one end.

A gate in the stub's steps takes the place of time: the model stands still while a test makes its situation.
"""

import asyncio
import json
import threading
import time

import numpy as np
import pytest

from deploy.serve.live import PATIENCE, eventually, in_background, live
from deploy.serve.stub_model import CARRIED, NAN_LAST, POISON, png
from deploy.serve.test_faults_wire import head, read_answer
from dynavit.deploy.serve.limits import Limits
from dynavit.deploy.serve.metrics import FRESH

ENDS = ("images_total", "refused_total", "cancelled_total", "expired_total", "failed_total", "decode_errors_total")


def conserved(server):
    """Every image that came in has exactly one end, as metrics count them."""
    totals = server.totals()
    assert totals["images_received_total"] == sum(totals.get(name, 0) for name in ENDS), totals
    return totals


def clean(server):
    """Nothing of any request is left: jobs, bytes, tasks, states."""
    server.settled()
    eventually(lambda: server.snapshot()["reserved_bytes"] == server.snapshot()["parked_bytes"] == 0)
    eventually(lambda: server.service.decoder.memory.used == 0)
    eventually(lambda: server.service.connections() == 0)
    eventually(lambda: not server.service.engine.executor.states)
    # The server's main loop, uvicorn's lifespan, and this question itself.
    eventually(lambda: server.call(lambda: len(asyncio.all_tasks())) <= 3)


def post(image, query=""):
    lines = ("Content-Type: image/png", f"Content-Length: {len(image)}")
    return head(f"/v1/predict{query}", *lines) + image


# ---- F7


@pytest.mark.parametrize("parser", ["httptools", "h11"])
def test_f7_clients_that_go_away(parser):
    """While decoding, queued, in a batch, and while the answer is written: cancelled, counted, nothing left."""
    with live(parser=parser, limits=Limits(max_batch=1)) as server:
        before = conserved(server)["cancelled_total"]
        prepare, decoding, go_on = server.service.decoder.prepare, threading.Event(), threading.Event()

        def slowly(image):
            decoding.set()
            go_on.wait(PATIENCE)
            return prepare(image)

        server.service.decoder.prepare = slowly
        with server.connect() as client:
            client.sendall(post(png()))
            assert decoding.wait(PATIENCE)
        eventually(lambda: server.totals()["cancelled_total"] == before + 1)
        server.service.decoder.prepare = prepare
        go_on.set()

        server.backend.gate.clear()
        server.backend.entered.clear()
        running, queued = server.connect(), server.connect()
        running.sendall(post(png(0.1, 0.1)))
        assert server.backend.entered.wait(PATIENCE)
        queued.sendall(post(png()))
        eventually(lambda: server.snapshot()["jobs"] == 2)
        queued.close()
        eventually(lambda: server.totals()["cancelled_total"] == before + 2)
        assert server.snapshot()["queued"] == [0, 0, 0]
        running.close()
        eventually(lambda: server.totals()["cancelled_total"] == before + 3)
        server.backend.gate.set()
        server.settled()
        eventually(lambda: server.backend.steps == [(1, 1)])  # its batch was finished, and it did not go on

        with server.connect() as client:
            client.sendall(post(png()))
            assert client.recv(10)  # and goes away in the middle of the answer
        clean(server)
        assert conserved(server)["images_total"] == 1
        assert server.predict(png())[0] == 200


# ---- F8


def test_f8_most_clients_time_out_and_then_normal_load():
    """After a storm of clients that gave up nothing is left that could make the next ones slower."""
    with live(limits=Limits(max_batch=4)) as server:
        server.backend.gate.clear()
        patient = in_background(6, lambda at: server.predict(png(0.1, 0.1, label=at % 4)))
        storm = [server.connect() for _ in range(24)]
        for client in storm:
            client.sendall(post(png(0.1, 0.1)))
        eventually(lambda: server.snapshot()["jobs"] == 30)
        for client in storm:
            client.close()
        eventually(lambda: server.snapshot()["jobs"] == 6)
        server.backend.gate.set()
        assert [(status, found["results"][0]["label"]) for status, _, found in patient()] == [(200, at % 4) for at in range(6)]
        clean(server)
        del server.backend.steps[:]
        again = in_background(8, lambda at: server.predict(png(0.1, 0.1)))()
        assert [status for status, _, _ in again] == [200] * 8
        assert sum(size for _, size in server.backend.steps) == 24  # three exits for eight images, no ghosts among them
        assert conserved(server)["cancelled_total"] == 24


# ---- F9


def test_f9_a_burst_beyond_the_queue():
    """Exactly max_queue are accepted; all others are told at once, and when to come back."""
    limits = Limits(max_queue=8, max_images=8)
    with live(limits=limits) as server:
        server.backend.gate.clear()
        waiting = in_background(80, lambda at: server.predict(png()))
        eventually(lambda: server.totals().get("refused_total", 0) == 72)
        assert server.snapshot()["jobs"] == 8
        server.service.decoder.prepare = None  # whoever is refused is not decoded first
        assert server.predict(png())[2]["code"] == "queue_full"
        server.backend.gate.set()
        answers = waiting()
        assert sorted(status for status, _, _ in answers) == [200] * 8 + [503] * 72
        for status, headers, found in answers:
            if status == 503:
                assert found["code"] == "queue_full" and int(headers["retry-after"]) >= 1
        clean(server)
        assert conserved(server)["images_total"] == 8
        assert server.service.ready and server.service.live


def test_maps_have_a_limit_of_their_own():
    """One is computed, some wait, and the next is refused; answers go on beside it."""
    go_on = threading.Event()

    def slowly(entry, exit):
        go_on.wait(PATIENCE)
        return {"grid": [1, 1], "attention": [[1.0]], "change": None}

    with live(limits=Limits(max_explain=2), explainer=slowly) as server:
        ask = ("POST", "/v1/explain", png(), {"Content-Type": "image/png"})
        waiting = in_background(3, lambda at: server.ask(*ask))
        eventually(lambda: server.service.explaining == 3)
        status, headers, found = server.ask(*ask)
        assert (status, found["code"]) == (503, "explain_full") and "retry-after" in headers
        go_on.set()
        assert [status for status, _, _ in waiting()] == [200] * 3
        assert server.predict(png())[0] == 200 and server.service.explaining == 0


def test_f9_as_429_and_as_not_ready():
    limits = Limits(max_queue=1, max_images=1, overload_status=429)
    with live(limits=limits, unready_when_full=True) as server:
        server.backend.gate.clear()
        waiting = in_background(1, lambda at: server.predict(png()))
        eventually(lambda: server.snapshot()["jobs"] == 1)
        status, headers, found = server.predict(png())
        assert (status, found["code"]) == (429, "queue_full") and "retry-after" in headers
        assert server.ask("GET", "/v2/health/ready")[0] == 503 and server.ask("GET", "/v2/health/live")[0] == 200
        server.backend.gate.set()
        assert waiting()[0][0] == 200 and server.ask("GET", "/v2/health/ready")[0] == 200


# ---- F10


@pytest.fixture
def tokens(tmp_path):
    (tmp_path / "tokens").write_text("greedy-client-token\nmodest-client-token\n")
    return tmp_path / "tokens"


def test_f10_a_greedy_client_does_not_starve_another(tokens):
    """Behind fifty images of one client, the single image of another runs in the next batch but one."""
    batches = []  # labels of their images
    with live(limits=Limits(max_batch=4, max_per_client=60), token_file=tokens) as server:
        step = server.backend.step

        def noted(state):
            batches.append(np.round(255 * state.images[:, 0, 1, 0]).tolist())
            return step(state)

        def ask(who, label):
            return server.predict(png(label=label), Authorization=f"Bearer {who}-client-token")[0]

        server.backend.step = noted
        server.backend.gate.clear()
        greedy = in_background(50, lambda at: ask("greedy", 0))
        eventually(lambda: server.snapshot()["jobs"] == 50)
        modest = in_background(1, lambda at: ask("modest", 1))
        eventually(lambda: server.snapshot()["jobs"] == 51)
        assert len(batches) == 1
        server.backend.gate.set()
        assert modest() == [200] and greedy() == [200] * 50
        assert any(1 in batch for batch in batches[:3]) and sum(batch.count(0) for batch in batches) == 50, batches


def test_f10_one_client_has_a_limit_of_its_own(tokens):
    with live(limits=Limits(max_per_client=3), token_file=tokens) as server:
        server.backend.gate.clear()
        greedy = {"Authorization": "Bearer greedy-client-token"}
        waiting = in_background(3, lambda at: server.predict(png(), **greedy))
        eventually(lambda: server.snapshot()["jobs"] == 3)
        status, headers, found = server.predict(png(), **greedy)
        assert (status, found["code"]) == (429, "client_limit") and "retry-after" in headers
        other = in_background(1, lambda at: server.predict(png(), Authorization="Bearer modest-client-token"))
        eventually(lambda: server.snapshot()["jobs"] == 4)
        server.backend.gate.set()
        assert [found[0] for found in [*waiting(), *other()]] == [200] * 4


# ---- F11, F12


@pytest.mark.parametrize("room", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_f11_f12_all_images_hard_and_memory_for_few(room):
    """Room for `room` images between exits: exit 1 pauses, nothing is refused for it, everything is answered."""
    limits = Limits(max_parked=room * max(CARRIED), max_batch=8, max_queue=64)
    with live(limits=limits) as server:
        reserved, scheduler = [], server.service.engine.scheduler
        server.backend.delay = lambda exit, batch: reserved.append(scheduler.reserved) or 0.002  # in every step
        answers = in_background(30, lambda at: server.predict(png(0.1, 0.1, 0.9), "?level=1"))()
        assert [(status, found["results"][0]["exit"]) for status, _, found in answers] == [(200, 3)] * 30
        assert 0 < max(reserved) <= limits.max_parked and len(reserved) == len(server.backend.steps)
        assert max(size for exit, size in server.backend.steps if exit > 1) <= room
        clean(server)


def test_f12_less_room_than_one_image_needs_is_refused_at_the_start():
    with pytest.raises(ValueError, match="max_parked is 2999, less than .* 3000"), live(limits=Limits(max_parked=2999)):
        pass


# ---- F17


def held_at(exit):
    """A delay that holds the given exit up until the event is set."""
    go_on = threading.Event()

    def delay(at, batch):
        if at == exit:
            go_on.wait(PATIENCE)
        return 0.0

    return go_on, delay


def in_time_for(wanted, ask):
    """The answer with the shortest deadline that leaves the machine time to get there: a busy one needs more."""
    for deadline in (200, 1_000, 5_000, 20_000):
        found = ask(f"?deadline_ms={deadline}")
        if found[2].get("code") == wanted or found[0] == wanted:
            return found
    raise AssertionError(found)


def test_f17_deadlines():
    """Before exit 1, between exits, and in the middle of a batch: the best answer on time, or 504."""
    with live(limits=Limits(max_batch=1)) as server:
        image = png(0.3, 0.3, 0.9)

        def while_exit_2_is_held(query):
            go_on, server.backend.delay = held_at(2)
            found = server.predict(image, query)
            if found[0] == 200:
                assert server.snapshot()["running_exit"] == 2
            go_on.set()
            server.settled()
            return found

        _, _, found = in_time_for(200, while_exit_2_is_held)
        (result,) = found["results"]
        assert (result["exit"], result["why"], len(result["exits"])) == (1, "deadline", 1)
        status, _, _ = in_time_for("deadline", lambda query: while_exit_2_is_held(f"{query}&on_deadline=fail"))
        assert status == 504

        server.backend.delay = lambda exit, batch: 0.0
        server.backend.gate.clear()
        holding = in_background(1, lambda at: server.predict(png()))
        eventually(lambda: server.snapshot()["running"] == 1)
        status, _, _ = in_time_for("deadline", lambda query: server.predict(image, query))  # never got to exit 1
        assert status == 504
        status, _, found = server.predict(image, "?deadline_ms=0.0001")  # not worth beginning
        assert (status, found["code"]) == (503, "would_miss_deadline")
        server.backend.gate.set()
        assert holding()[0][0] == 200
        clean(server)
        assert conserved(server)["expired_total"] >= 1


def test_f17_the_total_time_without_a_deadline():
    """Load never changes an answer: whoever set no deadline gets the whole answer or none."""
    limits = Limits(total_time=0.5, body_time=0.5, body_grace=0.5)
    with live(limits=limits) as server:
        go_on, server.backend.delay = held_at(2)
        status, _, found = server.predict(png(0.3, 0.3))
        assert (status, found["code"]) == (504, "total_time")
        go_on.set()
        clean(server)
        assert conserved(server)["expired_total"] == 1


# ---- F23


def test_f23_a_budget_changed_in_the_middle(tmp_path):
    """Images that were admitted keep their thresholds; the next ones have the new ones; nothing is restarted."""
    (tmp_path / "admin").write_text("the-operators-own-token")
    admin = {"Authorization": "Bearer the-operators-own-token", "Content-Type": "application/json"}
    with live(admin_token_file=tmp_path / "admin", budget="level=1") as server:
        server.backend.gate.clear()
        before = in_background(3, lambda at: server.predict(png(0.9, 0.9)))
        eventually(lambda: server.snapshot()["jobs"] == 3)
        assert server.ask("PUT", "/v1/budget", b'{"level": 0}', {"Content-Type": "application/json"})[0] == 401
        status, _, found = server.ask("PUT", "/v1/budget", b'{"level": 0}', admin)
        assert status == 200 and found["applied"]["thresholds"] == [0.0, 0.0]
        after = in_background(3, lambda at: server.predict(png(0.9, 0.9)))
        eventually(lambda: server.snapshot()["jobs"] == 6)
        server.backend.gate.set()
        assert [found["results"][0]["exit"] for _, _, found in before()] == [3] * 3
        assert [found["results"][0]["exit"] for _, _, found in after()] == [1] * 3
        status, _, found = server.ask("PUT", "/v1/budget", b'{"accuracy": 0.99}', admin)
        assert status == 422 and "accuracy from 0.8 to 0.95" in found["hint"]
        assert server.ask("GET", "/v1/info")[2]["budget"]["applied"]["thresholds"] == [0.0, 0.0]


# ---- F29, F30


def test_f29_many_scrapes_cost_like_few(monkeypatch):
    """What is rendered is given out again for a moment; throughput beside it is measured in benchmarks/serve."""
    with live() as server:
        rendered = []
        render = server.service.metrics._render
        monkeypatch.setattr(server.service.metrics, "_render", lambda registry: rendered.append(1) or render(registry))
        start = time.monotonic()
        for _ in range(50):
            status, headers, text = server.ask("GET", "/metrics")
        assert status == 200 and headers["content-type"].startswith("text/plain") and b"dynavit_images_total" in text
        assert len(rendered) <= 2 + (time.monotonic() - start) / FRESH
        time.sleep(FRESH)
        server.predict(png())
        time.sleep(FRESH)
        assert b'dynavit_images_total{exit="1",why="confident"} 1.0' in server.ask("GET", "/metrics")[2]


def test_f30_a_hundred_streams():
    with live() as server:
        streams = [server.connect() for _ in range(100)]
        for connection in streams:
            connection.sendall(head("/v1/stream", method="GET"))
        starts = [connection.recv(15) for connection in streams]
        assert starts.count(b"HTTP/1.1 200 OK") == 16 and sum(start.startswith(b"HTTP/1.1 503") for start in starts) == 84
        assert server.service.streams == 16 and server.predict(png())[0] == 200
        for connection in streams:
            connection.close()
        eventually(lambda: server.service.streams == 0)
        with server.connect() as again:
            again.sendall(head("/v1/stream", method="GET"))
            assert read_until(again, b"\n\n")


def read_until(connection, mark):
    got = b""
    while mark not in got.partition(b"\r\n\r\n")[2]:
        got += connection.recv(4096)
    return got


# ---- Every image has one end


def test_every_image_has_exactly_one_end():
    """A scripted run with all ends there are: answered, refused, cancelled, expired, failed, not decoded."""
    limits = Limits(max_queue=6, max_images=6, max_per_client=6)
    with live(limits=limits) as server:
        sent = 0
        for image in (png(), png(0.1, 0.9), b"text", b"", png(flag=POISON), png(0.1, 0.1, flag=NAN_LAST)):
            server.predict(image)
            sent += 1
        options = {"images": [{"b64": ""}] * 3 + [{"b64": "aGVsbG8="}]}
        server.ask("POST", "/v1/predict", json.dumps(options).encode(), {"Content-Type": "application/json"})
        server.ask("POST", "/v1/sweep", png(), {"Content-Type": "image/png"})
        server.predict(png(), "?gmacs=-1")  # the request is wrong; its image is not looked at
        server.predict(png(), "?deadline_ms=0.0001")
        sent += 4 + 1 + 1
        server.backend.gate.clear()
        gone = server.connect()
        gone.sendall(post(png()))
        late = in_background(1, lambda at: server.predict(png(), "?deadline_ms=20000&on_deadline=fail"))
        eventually(lambda: server.snapshot()["jobs"] == 2)
        gone.close()
        eventually(lambda: server.snapshot()["jobs"] == 1)
        server.let_time_pass(20)
        assert late()[0][2]["code"] == "deadline"
        burst = in_background(10, lambda at: server.predict(png()))
        eventually(lambda: server.totals()["refused_total"] == 5)
        server.backend.gate.set()
        burst()
        sent += 2 + 10
        clean(server)
        totals = conserved(server)
        assert totals["images_received_total"] == sent
        assert {name: totals[name] for name in ENDS} == {
            "images_total": 9,
            "refused_total": 5,
            "cancelled_total": 1,
            "expired_total": 1,
            "failed_total": 2,
            "decode_errors_total": 6,
        }
        stats = server.ask("GET", "/v1/stats")[2]
        assert stats["images"] == 9 and stats["refused"] == 5 and stats["totals"]["images_total"] == 9
        assert sum(exit["images"] for exit in stats["exits"]) == 9
        assert totals["gmacs_total"] == pytest.approx(stats["mean_gmacs"] * 9)


def test_answers_on_one_connection_in_turn():
    """Keep-alive and requests sent before the last answer came."""
    with live() as server, server.connect() as connection:
        connection.sendall(post(png(label=1)) + post(png(label=2)))
        assert [read_answer(connection)[2]["results"][0]["label"] for _ in range(2)] == [1, 2]
