"""Two replicas behind Ray Serve on one machine: `make test-ray` runs this in an environment of its own.

Not named test_*, so that the default suite, which has no Ray, leaves it out. The bundle is made there beforehand, with torch;
here neither is needed. DYNAVIT_RAY_BUNDLE names it.
"""

import collections
import io
import json
import os
import signal
import sys
import threading
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

PORT = 8917
RECOVERY = 30.0  # seconds, A15
CLIENTS = 4


def digit(at):
    """A picture like the built-in digits, always the same for one number."""
    import numpy as np
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(at).integers(0, 256, (8, 8), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def ask(method, path, body=None, headers=None, timeout=20):
    connection = HTTPConnection("127.0.0.1", PORT, timeout=timeout)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        data = response.read()
        is_json = response.headers.get("Content-Type", "").startswith("application/json")
        return response.status, json.loads(data) if is_json else data
    finally:
        connection.close()


def predict(at, query=""):
    return ask("POST", f"/v1/predict{query}", digit(at), {"Content-Type": "image/png"})


@pytest.fixture(scope="module")
def bundle():
    path = os.environ.get("DYNAVIT_RAY_BUNDLE")
    assert path and Path(path).is_dir(), "DYNAVIT_RAY_BUNDLE names the bundle of a cascade; make test-ray makes one"
    return str(Path(path).resolve())


@pytest.fixture(scope="module")
def cluster(bundle):
    import ray
    from ray import serve

    # Replicas are asked which process they are, so that one can be killed.
    start = time.monotonic()
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    deploy(bundle, None)
    print(f"serving after {time.monotonic() - start:.1f} s", file=sys.stderr)
    yield serve
    serve.shutdown()
    ray.shutdown()


def deploy(bundle, budget):
    """What `serve deploy ops/ray.yaml` does, with this bundle and budget."""
    import yaml
    from ray import serve
    from ray.serve.context import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    plain = yaml.safe_load((Path(__file__).parents[3] / "ops" / "ray.yaml").read_text())
    (app,) = plain["applications"]
    app["args"] |= {"bundle": bundle, "limits": {"max_queue": 64}}
    app["deployments"][0]["user_config"] = {"budget": budget}
    _get_global_client().deploy_apps(ServeDeploySchema(applications=[app]))

    def running():
        return serve.status().applications["dynavit"].status == "RUNNING"

    wait_for(running, 120, "a running application")


def replicas():
    """Process ids of the replicas, from the operating system."""
    import psutil  # comes with Ray

    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if "ServeReplica:dynavit" in " ".join(process.info["cmdline"] or [])
    ]


def serving():
    """The number of replicas that Ray counts as running."""
    from ray import serve

    return serve.status().applications["dynavit"].deployments["dynavit"].replica_states.get("RUNNING", 0)


class Load:
    """Clients that ask all the time, and note what they got."""

    def __init__(self, query=""):
        self.query, self.stop, self.seen, self.lock = query, threading.Event(), [], threading.Lock()
        self.threads = [threading.Thread(target=self.work, args=(at,), daemon=True) for at in range(CLIENTS)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join(30)

    def work(self, at):
        while not self.stop.is_set():
            start = time.monotonic()
            try:
                status, found = predict(at, self.query)
                thresholds = found["budget"]["applied"]["thresholds"] if status == 200 else None
            except (OSError, HTTPException):
                status, thresholds = 0, None
            with self.lock:
                self.seen.append((start, status, thresholds))

    def count(self):
        with self.lock:
            return collections.Counter(status for _, status, _ in self.seen)


def wait_for(condition, patience, what):
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < patience, f"{what}: not within {patience} s"
        time.sleep(0.1)
    return time.monotonic() - start


def test_answers_are_those_of_the_plain_app(cluster, bundle):
    from dynavit.deploy.bundle.runner import load_bundle

    plain = load_bundle(bundle)
    for at in range(8):
        status, found = predict(at)
        (result,) = found["results"]
        path = Path(os.environ.get("TMPDIR", "/tmp")) / f"ray_check_{os.getpid()}.png"
        path.write_bytes(digit(at))
        (wanted,) = plain.predict_files([path], top=1)
        path.unlink()
        assert status == 200 and (result["name"], result["exit"]) == (wanted["label"], wanted["exit"])
        assert abs(result["confidence"] - wanted["confidence"]) <= 1e-5
    assert ask("GET", "/v2/health/ready")[0] == 200 and ask("GET", "/")[0] == 200 and ask("GET", "/nothing")[0] == 404
    assert len(replicas()) == 2


def test_a15_one_replica_killed_under_load(cluster):
    """What was in flight on it may be lost, nothing else; and there are two again soon."""
    with Load() as load:
        wait_for(lambda: load.count()[200] > 50, 60, "answers before the kill")
        victim = replicas()[0]
        os.kill(victim, signal.SIGKILL)
        took = wait_for(lambda: len(set(replicas()) - {victim}) == serving() == 2, 2 * RECOVERY, "two replicas again")
        before = load.count()[200]
        wait_for(lambda: load.count()[200] > before + 50, 60, "answers afterwards")
    counts = load.count()
    failed = sum(count for status, count in counts.items() if status != 200)
    print(
        f"A15: {dict(counts)}, {failed} failed of at most {CLIENTS} in flight, two replicas again after {took:.1f} s",
        file=sys.stderr,
    )
    assert failed <= CLIENTS and took <= RECOVERY


def test_the_budget_changes_in_mid_load_without_a_restart(cluster, bundle):
    points = ask("GET", "/v1/curve")[1]["points"]
    target = points[-1] if points else None
    budget = {"level": 1.0}
    before = set(replicas())
    with Load() as load:
        wait_for(lambda: load.count()[200] > 20, 60, "answers before")
        old = {tuple(thresholds) for _, status, thresholds in load.seen if status == 200}
        deploy(bundle, budget)
        changed = time.monotonic()
        time.sleep(3)
        wait_for(lambda: sum(start > changed + 2 for start, _, _ in load.seen) > 20, 60, "answers afterwards")
    new = {tuple(thresholds) for start, status, thresholds in load.seen if status == 200 and start > changed + 2}
    print(f"budget: {dict(load.count())}, thresholds {sorted(old)} became {sorted(new)}", file=sys.stderr)
    assert set(load.count()) == {200}
    assert len(new) == 1 and new != old and (target is None or new == {tuple(target["thresholds"])})
    assert set(replicas()) == before


def test_a_client_that_goes_away_leaves_nothing(cluster):
    import socket

    for _ in range(10):
        with socket.create_connection(("127.0.0.1", PORT)) as client:
            body = digit(1)
            head = f"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)

    def empty():
        return all(ask("GET", "/v1/stats")[1]["queue"] == 0 for _ in range(6))  # of either replica

    wait_for(empty, 20, "empty queues")
    assert predict(1)[0] == 200
