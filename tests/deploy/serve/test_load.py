"""What the load benchmark tells about a server: exact mixes, rates, and the books of a soak. Nothing is timed here."""

import importlib.util
import math
import random
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from deploy.serve.simulator import simulate as simulator

FOLDER = Path(__file__).parents[3] / "benchmarks" / "serve"


def script(name):
    """A script of the benchmark as a module, under its own name: they import each other."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generator():
    yield script("generator")
    del sys.modules["generator"]


@pytest.fixture(scope="module")
def soak(generator):
    yield script("soak")
    del sys.modules["soak"]


@pytest.mark.parametrize(("mix", "length"), [((0.9, 0.07), 100), ((0.6, 0.25), 20), ((1 / 3, 1 / 3), 3), ((0.1, 0.2), 10)])
def test_every_run_of_images_has_the_mix(generator, mix, length):
    caps = list(islice(generator.deck(mix, random.Random(0)), 5 * length))
    for start in range(0, len(caps), length):
        counts = Counter(caps[start : start + length])
        assert [counts[exit] for exit in (1, 2, 3)] == [round(share * length) for share in (*mix, 1 - sum(mix))]
    assert length < 10 or caps[:length] != caps[length : 2 * length], "shuffled anew"


@pytest.mark.parametrize("start", [0.0, 0.1, 0.4, 0.7, 1.3])
def test_a_rate_does_not_depend_on_where_the_time_cuts_the_batches(generator, start):
    """Eight answers every 0.48 s; to count those in 2.4 s would give 13.3, 16.7 or 20."""
    times = [0.48 * batch for batch in range(100) for _ in range(8)]
    assert generator.steady_rate(times, start, start + 2.4) == pytest.approx(8 / 0.48)


def test_one_batch_has_no_rate(generator):
    assert math.isnan(generator.steady_rate([1.0, 1.001, 1.002], 0.0, 2.0)) and math.isnan(generator.steady_rate([], 0.0, 2.0))


def test_simulated_rate_of_a_closed_loop(generator):
    """All leave at exit 1, in full batches: b / s_1(b)."""
    lines, most = simulator.COSTS["cpu"]
    times = simulator.closed(simulator.make(simulator.Scheduler, lines, most), [1] * 10_000, 48, 5_000)
    fixed, each = lines[0]
    assert 1e3 * generator.steady_rate(times, 1_000, 5_000) == pytest.approx(1e3 * most / (fixed + each * most))


def test_more_holding_gains_images_and_costs_the_slowest():
    """Where a launch is dear. A queue of one exit's images only is served in order: p99 is a full queue."""
    rows = [simulator.holding("accelerator-like", "60/25/15", hold, 2000) for hold in (1, 8)]
    assert rows[0]["gain"] < rows[1]["gain"] and rows[0]["late"] < rows[1]["late"]
    lines, most = simulator.COSTS["accelerator-like"]
    one = simulator.arrivals((1.0, 0.0), 20_000, 6_000, 0)
    rate, p99 = simulator.overloaded(simulator.make(simulator.Scheduler, lines, most, max_queue=256), one)
    fixed, each = lines[0]
    best = 1e3 * most / (fixed + each * most)
    assert rate == pytest.approx(best, rel=0.02) and p99 == pytest.approx(256e3 / best, rel=0.15)


ANSWER = {"request_id": "plain-1", "results": [{"exit": 2}], "budget": {"applied": {"max_exit": 2}}}


@pytest.mark.parametrize(
    ("kind", "cap", "status", "answer", "wrong"),
    [
        ("plain", 2, 200, ANSWER, None),
        ("plain", 3, 200, ANSWER, "another exit than asked for"),
        ("no_budget", 0, 200, ANSWER, None),
        ("no_budget", 0, 200, ANSWER | {"budget": {"applied": {"max_exit": 3}}}, "another exit than asked for"),
        ("plain", 2, 0, {}, "lost"),
        ("plain", 2, 200, ANSWER | {"request_id": "plain-2"}, "of another request"),
        ("plain", 2, 500, {"request_id": "plain-1"}, "status 500 for plain"),
        ("plain", 2, 503, {"request_id": "plain-1", "code": "queue_full"}, None),
        ("plain", 2, 503, {"request_id": "plain-1", "code": "not_ready"}, "refused for another reason"),
        ("poison", 2, 500, {"request_id": "plain-1"}, None),
        ("poison", 2, 200, ANSWER, "status 200 for poison"),
        ("no_image", 2, 415, {"request_id": "plain-1"}, None),
        ("gone", 2, -1, {}, None),
    ],
)
def test_what_is_wrong_with_an_answer(generator, soak, kind, cap, status, answer, wrong):
    request = generator.Request("/v1/predict", cap, id="plain-1", status=status, answer=answer)
    assert soak.wrong(kind, request) == wrong
