"""Tokens, ids, headers, facts: what every request passes, and the routes that only tell."""

import re

import pytest
from prometheus_client import generate_latest

from deploy.serve.live import live
from deploy.serve.stub_model import png
from dynavit.deploy.serve import schemas
from dynavit.deploy.serve.limits import Limits
from dynavit.deploy.serve.recent import Recent
from dynavit.deploy.serve.service import Sample
from dynavit.deploy.serve.settings import Settings

TOKEN, ADMIN = "0123456789abcdef", "fedcba9876543210"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    directory = tmp_path_factory.mktemp("keys")
    (directory / "token").write_text(f"{TOKEN}\n")
    (directory / "admin").write_text(ADMIN)
    return {"token_file": directory / "token", "admin_token_file": directory / "admin"}


@pytest.fixture(scope="module")
def locked(keys):
    with live(**keys) as running:
        yield running


def test_everything_but_the_page_and_health_needs_the_token(locked):
    for path in ("/", "/v2/health/live", "/v2/health/ready", "/openapi.json"):
        assert locked.ask("GET", path)[0] == 200, path
    for path in (
        "/v1/info",
        "/v1/curve",
        "/v1/stats",
        "/v1/stream",
        "/v1/samples",
        "/metrics",
        "/v2",
        "/v2/models/stub",
        "/none",
    ):
        status, headers, found = locked.ask("GET", path)
        assert (status, found["code"], headers["www-authenticate"]) == (401, "unauthorised", "Bearer"), path
    assert locked.predict(png())[0] == 401
    for value in ("", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer", f"Bearer {TOKEN} {TOKEN}"):
        assert locked.predict(png(), Authorization=value)[0] == 401, value
    for value in (f"Bearer {TOKEN}", f"bearer  {TOKEN}", f"Bearer {ADMIN}"):
        assert locked.predict(png(), Authorization=value)[0] == 200


def test_the_budget_needs_the_other_token(locked):
    for key, status in ((TOKEN, 401), ("", 401), (ADMIN, 200)):
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        assert locked.ask("PUT", "/v1/budget", b'{"level": 0.5}', headers)[0] == status
    assert locked.ask("PUT", "/v1/budget", b"[]", {"Authorization": f"Bearer {ADMIN}"})[0] == 422


def test_open_metrics(keys):
    with live(**keys, metrics_open=True) as running:
        assert running.ask("GET", "/metrics")[0] == 200 and running.ask("GET", "/v1/stats")[0] == 401


def test_settings_that_would_be_unsafe(keys, tmp_path, monkeypatch):
    for wrong, told in (
        ({"host": "0.0.0.0"}, "a token is needed"),
        ({"host": "192.168.0.1"}, "a token is needed"),
        ({"origins": "*", "token_file": keys["token_file"]}, "every page"),
        ({"token_file": keys["token_file"], "admin_token_file": keys["token_file"]}, "have to differ"),
        ({"budget": "gmacs=1 level=2"}, "level"),
        ({"budget_range": "level=1"}, "two targets"),
    ):
        with pytest.raises(ValueError, match=told):
            Settings(**wrong).check()
    Settings(host="0.0.0.0", insecure=True).check()
    Settings(host="::1").check()
    Settings(host="localhost", origins="*").check()
    monkeypatch.setenv("DYNAVIT_TOKEN", TOKEN)
    assert Settings().keys() == {TOKEN.encode()}
    Settings(host="0.0.0.0").check()
    (tmp_path / "none").write_text("\n")
    with pytest.raises(ValueError, match="holds no token"):
        Settings(token_file=tmp_path / "none").keys()


def test_default_limits():
    """As the specification has them, and beside them those that were found missing."""
    mib = 1 << 20
    bytes_ = {
        "max_body": 16 * mib,
        "max_image": 10 * mib,
        "decode_memory": 256 * mib,
        "max_parked": 512 * mib,
        "body_rate": 16 << 10,
    }
    counts = {
        "max_pixels": 50_000_000,
        "max_side": 16_384,
        "decode_threads": 2,
        "max_images": 32,
        "max_batch": 32,
        "max_depth": 16,
    }
    queues = {"max_queue": 256, "max_per_client": 64, "max_connections": 512, "max_streams": 16, "max_explain": 4}
    times = {
        "header_time": 10,
        "body_time": 30,
        "body_grace": 5,
        "total_time": 30,
        "keep_alive": 75,
        "drain_time": 30,
        "heartbeat": 10,
    }
    ours = {
        "max_bodies": 256 * mib,
        "max_aspect": 100,
        "decode_wait": 5,
        "send_time": 30,
        "max_header": 128 << 10,
        "max_path": 8 << 10,
    }
    assert Limits().to_dict() == {**bytes_, **counts, **queues, **times, **ours, "overload_status": 503}
    Limits().check()


def test_metrics_are_those_that_were_promised():
    """Every name with its labels: few, and none that a client could choose."""
    with live() as running:
        running.predict(png())
        running.predict(b"no image")
        running.predict(png(), "?deadline_ms=0.0001")
        text = generate_latest(running.service.metrics.registry).decode()
    found = {}
    for name, labels in re.findall(r"^dynavit_(\w+)(?:{(.*)})? \S+$", text, re.MULTILINE):
        if not name.endswith("_created"):
            found.setdefault(re.sub(r"_(bucket|count|sum)$", "", name), set()).update(re.findall(r"(\w+)=", labels))
    plain = ("cancelled_total", "expired_total", "slow_clients_total", "step_errors_total", "images_received_total")
    gauges = ("parked_bytes", "reserved_bytes", "running_jobs", "connections", "budget_level", "expected_gmacs")
    exits = (
        "queue_seconds",
        "stage_seconds",
        "batch_size",
        "queue_jobs",
        "regrouped_total",
        "bypass_max",
        "gmacs_total",
        "confidence",
    )
    expected = {
        **{name: set() for name in (*plain, *gauges, "capacity_images_per_second")},
        **{name: {"exit"} for name in exits},
        "requests_total": {"route", "code"},
        "images_total": {"exit", "why"},
        "refused_total": {"reason"},
        "request_seconds": {"route"},
        "decode_seconds": {"format"},
        "decode_errors_total": {"format"},
        "build_info": {"version", "model_version", "torch"},
    }
    assert {name: labels - {"le"} for name, labels in found.items()} == expected


def test_limits_that_contradict_each_other():
    for wrong, told in (
        ({"max_queue": 8}, "max_queue is 8, less than max_images, which is 32"),
        ({"max_image": 17 << 20}, "max_body is .*, less than max_image"),
        ({"decode_memory": 1 << 20}, "decode_memory is 1.04858e\\+06, less than the largest image"),
        ({"total_time": 10.0}, "total_time is 10, less than body_time, which is 30"),
        ({"max_streams": 600}, "max_connections is 512"),
        ({"max_bodies": 1 << 20}, "max_bodies"),
    ):
        with pytest.raises(ValueError, match=told):
            Limits(**wrong).check()
    with pytest.raises(ValueError, match="max_parked is .*, less than what one image carries"):
        Limits().check(job_bytes=1 << 30)
    with pytest.raises(ValueError, match="max_pixels is 100, less than the pixels of the model's input, which is 200"):
        Limits(max_pixels=100).check(input_pixels=200)
    assert Limits().check(job_bytes=1 << 20) == [] and "a batch of 32" in Limits().check(job_bytes=1 << 28)[0]
    with pytest.raises(ValueError, match="max_queue"):
        Limits(max_queue=0)


def test_request_ids_and_headers(locked):
    key = {"Authorization": f"Bearer {TOKEN}"}
    for given, kept in (("abc-1.2_3", True), ("x" * 64, True), ("x" * 65, False), ("a b", False), ("<script>", False)):
        _, headers, found = locked.predict(png(), **key, **{"X-Request-ID": given})
        assert (headers["x-request-id"] == given) == kept and found["request_id"] == headers["x-request-id"]
        assert re.fullmatch(r"[A-Za-z0-9._-]{1,64}", headers["x-request-id"])
    _, headers, found = locked.ask("GET", "/none", headers={**key, "X-Request-ID": "mine"})
    assert found["request_id"] == headers["x-request-id"] == "mine"
    for path in ("/v1/info", "/none", "/metrics"):
        _, headers, _ = locked.ask("GET", path, headers=key)
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        assert headers["content-security-policy"].startswith("default-src 'none'") and "server" not in headers


def test_the_page_has_a_policy_with_a_nonce(locked):
    pages = [locked.ask("GET", "/") for _ in range(2)]
    nonces = {re.search(r"script-src 'nonce-([\w-]+)'", headers["content-security-policy"])[1] for _, headers, _ in pages}
    assert len(nonces) == 2
    for _, headers, text in pages:
        nonce = re.search(r"script-src 'nonce-([\w-]+)'", headers["content-security-policy"])[1]
        assert text.count(f'nonce="{nonce}"'.encode()) >= 2 and b"__NONCE__" not in text
        assert "connect-src 'self'" in headers["content-security-policy"] and headers["content-type"].startswith("text/html")


def test_facts_have_the_shapes_that_openapi_promises(locked):
    key = {"Authorization": f"Bearer {TOKEN}"}
    locked.service.samples = (Sample("a", png()),)
    for path, shape in (
        ("/v1/info", schemas.Info),
        ("/v1/curve", schemas.Curve),
        ("/v1/stats", schemas.Stats),
        ("/v1/samples", schemas.Samples),
    ):
        status, _, found = locked.ask("GET", path, headers=key)
        assert status == 200
        shape.model_validate(found)
        assert set(found) <= set(shape.model_fields), path
    info = locked.ask("GET", "/v1/info", headers=key)[2]
    assert info["limits"]["max_queue"] == 256 and info["exits"][2]["cumulative_gmacs"] == 4.0
    assert len(info["costs"]) == 3 and info["model"] == {"name": "stub", "version": "v1"}
    assert [point["level"] for point in locked.ask("GET", "/v1/curve", headers=key)[2]["points"]] == [0, 1 / 3, 2 / 3, 1]


def test_a_wrong_method_says_what_is_allowed(locked):
    status, headers, found = locked.ask("DELETE", "/v1/info", headers={"Authorization": f"Bearer {TOKEN}"})
    assert (status, headers["allow"], found["code"]) == (405, "GET", "method")


def test_the_recent_past_is_exact():
    now = [1000.0]
    recent = Recent(2, lambda: now[0])
    for second in range(90):
        now[0] = 1000.0 + second
        for image in range(4):
            recent.answered(1 if image else 2, 1.0 if image else 5.0, 0.01 * (image + 1))
        recent.refused()
        recent.batch(1, 3)
        recent.batch(1, 1)
    found = recent.summary()
    assert found["images"] == 240 and found["refused"] == 60 and found["images_per_second"] == 4
    assert [exit["share"] for exit in found["exits"]] == [0.75, 0.25] and found["exits"][0]["batch"] == 2
    assert found["mean_gmacs"] == 2.0
    assert found["latency_ms"] == pytest.approx({"p50": 20.0, "p95": 40.0, "p99": 40.0})
    now[0] += 61
    assert recent.summary()["images"] == 0 and recent.summary()["latency_ms"]["p50"] is None
