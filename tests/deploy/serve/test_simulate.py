"""The simulator drives the real scheduler; its schedules are those of the plain simulation it was designed with."""

import math

import pytest

from deploy.serve.simulator import simulate as simulator
from dynavit.deploy.serve.scheduler import Scheduler


def plainly(lines, jobs, most, rule, hold=8, epsilon=0.1):
    """Three queues, the last three rules and nothing else; exits from 0. Launches and latencies."""
    full = [min(most, max(1, math.ceil(a / (epsilon * c)))) for a, c in lines]
    queues, bypass, latency, launches = [[], [], []], [0] * 3, [0.0] * len(jobs), []
    now, came, done = 0.0, 0, 0
    while done < len(jobs):
        while came < len(jobs) and jobs[came][0] <= now:
            queues[0].append(came)
            came += 1
        if not any(queues):
            now = jobs[came][0]
            continue
        k = deepest = max(k for k in range(3) if queues[k])
        if rule == "pressure":
            ripe = [k for k in (2, 1) if queues[k] and (len(queues[k]) >= full[k] or bypass[k] >= hold)]
            pressed = [k for k in range(3) if len(queues[k]) >= full[k]]
            k = (ripe + pressed + [deepest])[0]
        for j in range(k + 1, 3):
            bypass[j] += bool(queues[j])
        bypass[k] = 0
        batch, queues[k] = queues[k][:most], queues[k][most:]
        launches.append((k + 1, tuple(batch)))
        now += lines[k][0] + lines[k][1] * len(batch)
        for job in batch:
            if jobs[job][1] == k + 1:
                latency[job] = now - jobs[job][0]
                done += 1
            else:
                queues[k + 1].append(job)
        if k < 2:
            queues[k + 1].sort()
    return launches, latency


@pytest.mark.parametrize("rule", ["pressure", "shrinking"])
@pytest.mark.parametrize("costs", simulator.COSTS)
def test_same_schedule(costs, rule):
    lines, most = simulator.COSTS[costs]
    kind = {"pressure": Scheduler, "shrinking": simulator.Shrinking}[rule]
    for mix, rate in (("90/7/3", 1e5), ("60/25/15", 45.0 if costs == "cpu" else 1800.0), ("1/3 each", 1e5)):
        jobs = simulator.arrivals(simulator.MIXES[mix], rate, 400, seed=1)
        found = simulator.simulate(simulator.make(kind, lines, most), jobs)
        launches, latency = plainly(lines, jobs, most, rule)
        assert found.launches == launches and found.latency == latency  # to the bit


def test_oldest_first_is_the_shrinking_batch():
    """Survivors are never joined by others: regrouping by age alone does nothing."""
    lines, most = simulator.COSTS["cpu"]
    jobs = simulator.arrivals(simulator.MIXES["60/25/15"], 1e5, 300, seed=0)
    own, ours = (simulator.simulate(simulator.make(kind, lines, most), jobs) for kind in (simulator.Shrinking, Scheduler))
    assert own.regrouped == [0, 0, 0] and ours.regrouped[1] > 0


@pytest.mark.parametrize("costs", simulator.COSTS)
def test_answers_are_in_time(costs):
    """A9 in virtual time: at 80 % load and a deadline of 3 s_1(B) at least 99 of 100 have an answer."""
    lines, most = simulator.COSTS[costs]
    rate = {"cpu": 39.0, "accelerator-like": 2229.0}[costs]  # of 49 and 2786 images/s
    jobs = simulator.arrivals(simulator.MIXES["60/25/15"], rate, 1200, seed=1)
    ends = simulator.with_deadlines(simulator.make(Scheduler, lines, most), jobs, 3 * (lines[0][0] + lines[0][1] * most))
    assert sum(ends.values()) == 1200 and ends["refused"] < 60
    assert ends["expired"] <= 0.01 * (1200 - ends["refused"])


def test_who_has_no_answer_comes_first(monkeypatch):
    """By deadlines alone, deep steps for better answers leave new images without any."""
    monkeypatch.setattr("dynavit.deploy.serve.scheduler._has_answer", lambda job: False)
    with pytest.raises(AssertionError):
        test_answers_are_in_time("accelerator-like")
