"""The service's own scheduler under virtual time: what regrouping between exits is worth, before anything is served.

    python benchmarks/serve/simulate.py [--jobs 12000] [--seeds 1] [--out FILE]
    python benchmarks/serve/simulate.py --overload [--out FILE]        what --hold costs when twice as much comes as can be done

Poisson arrivals, one device, linear costs; each image's exit is drawn beforehand. One client, no deadlines, memory for all.
Three ways: the whole cascade for every image; survivors run on in their own batch, which shrinks; the scheduler (`pressure`).
The CPU costs are those of dvt_t2t_vit_12 on 2 cores, the accelerator-like ones are invented: cheap images, dear launches.
Printed are images per second when saturated, the 99th percentile of the latency at shares of the shrinking batch's rate, and
how many images have an answer in time if all have a deadline of 3 s_1(B), at 80 % load.
"""

import argparse
import random
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

from dynavit.common.files import write_json
from dynavit.deploy.serve.costs import Costs, Line
from dynavit.deploy.serve.curve import Applied
from dynavit.deploy.serve.jobs import Answered, Continues, Refused
from dynavit.deploy.serve.scheduler import Scheduler

# milliseconds: fixed, each; largest batch
COSTS = {
    "cpu": ([(3.8, 7.5), (4.7, 16.9), (3.0, 34.4)], 8),
    "accelerator-like": ([(2.0, 0.1), (3.0, 0.2), (4.0, 0.4)], 32),
}
MIXES = {"90/7/3": (0.90, 0.07), "60/25/15": (0.60, 0.25), "1/3 each": (1 / 3, 1 / 3), "10/20/70": (0.10, 0.20)}
LOADS = (0.5, 0.8, 0.95, 1.25)
SATURATED = 1e5  # images per second


class Shrinking(Scheduler):
    """Survivors go on at once, in their own batch: what early exit inside of batches does."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.rules = (("rest", self.deepest),)


@dataclass(frozen=True)
class Run:
    """Times in milliseconds. `launches` are (exit, jobs), `latency` one for each job."""

    rate: float
    latency: list[float]
    launches: list[tuple[int, tuple[int, ...]]]
    regrouped: list[int]

    def percentiles(self):
        """p50, p95, p99 and the mean, without the first tenth."""
        tail = sorted(self.latency[len(self.latency) // 10 :])
        return [tail[int(share * len(tail))] for share in (0.5, 0.95, 0.99)] + [sum(tail) / len(tail)]


def arrivals(mix, rate, count, seed):
    """(time in ms, exit it will leave at) of each job."""
    chance, now, jobs = random.Random(seed), 0.0, []
    for _ in range(count):
        now += chance.expovariate(rate / 1000)
        draw = chance.random()
        jobs.append((now, 1 if draw < mix[0] else 2 if draw < mix[0] + mix[1] else 3))
    return jobs


def make(kind, lines, most, **options):
    """A scheduler of time in milliseconds, with nothing in the way of the rules."""
    plenty = {"max_queue": 10**9, "max_per_client": 10**9, "max_parked": 10**15}
    return kind(len(lines), [most] * len(lines), Costs([Line(*line) for line in lines]), [1] * len(lines), **plenty | options)


def simulate(scheduler, jobs):
    """Drive the scheduler through these jobs. A job's confidence is 1 at its own exit and 0 before."""
    applied = Applied((0.5,) * (scheduler.exits - 1), scheduler.exits)
    latency, launches, now, came, left = [0.0] * len(jobs), [], 0.0, 0, 0
    while left < len(jobs):
        while came < len(jobs) and jobs[came][0] <= now:
            scheduler.offer(jobs[came][0], "one", applied)
            came += 1
        batch = scheduler.next_batch(now)
        if batch is None:
            now = jobs[came][0]
            continue
        launches.append((batch.exit, batch.jobs))
        now += scheduler.costs(batch.exit, len(batch.jobs))
        for event in scheduler.done(now, batch, [float(jobs[job][1] == batch.exit) for job in batch.jobs]):
            if isinstance(event, Answered):
                latency[event.job] = now - jobs[event.job][0]
                left += 1
    return Run(len(jobs) / now * 1000, latency, launches, list(scheduler.regrouped))


def with_deadlines(scheduler, jobs, patience):
    """The same where every job has a deadline, `patience` after it came: how many ended how, and how many were refused."""
    applied, ends, now, came, batch, done_at = (
        Applied((0.5,) * (scheduler.exits - 1), scheduler.exits),
        Counter(),
        0.0,
        0,
        None,
        None,
    )
    own = {}  # job -> exit

    def count(events):
        ends.update(
            event.why if isinstance(event, Answered) else "expired" for event in events if not isinstance(event, Continues)
        )

    while True:
        if batch is None and (batch := scheduler.next_batch(now)) is not None:
            done_at = now + scheduler.costs(batch.exit, len(batch.jobs))
        count(scheduler.tick(now))
        due = [
            time for time in (done_at, scheduler.next_timer(), *(time for time, _ in jobs[came : came + 1])) if time is not None
        ]
        if not due:
            return ends
        now = max(now, min(due))
        count(scheduler.tick(now))
        if came < len(jobs) and jobs[came][0] <= now:
            try:
                own[scheduler.offer(now, "one", applied, now + patience)] = jobs[came][1]
            except Refused:
                ends["refused"] += 1
            came += 1
        elif done_at is not None and done_at <= now:
            ended, batch, done_at = batch, None, None
            count(scheduler.done(now, ended, [float(own[job] == ended.exit) for job in ended.jobs]))


def closed(scheduler, exits, at_once, end):
    """Times (ms) of answers until `end` where so many images are always there; `exits` are where they leave, one by one."""
    applied, coming, own, now, times = Applied((0.5,) * (scheduler.exits - 1), scheduler.exits), iter(exits), {}, 0.0, []
    for _ in range(at_once):
        own[scheduler.offer(now, "one", applied)] = next(coming)
    while now <= end:
        batch = scheduler.next_batch(now)
        now += scheduler.costs(batch.exit, len(batch.jobs))
        events = scheduler.done(now, batch, [float(own[job] == batch.exit) for job in batch.jobs])
        for _ in [event for event in events if isinstance(event, Answered)]:
            times.append(now)
            own[scheduler.offer(now, "one", applied)] = next(coming)
    return times


def overloaded(scheduler, jobs):
    """(rate, p99 in ms of images that were admitted) without the first tenth, where more come than a bounded queue takes."""
    applied, own, now, came = Applied((0.5,) * (scheduler.exits - 1), scheduler.exits), {}, 0.0, 0
    begin, answered, latency = jobs[-1][0] / 10, 0, []

    def admit(until):
        nonlocal came
        while came < len(jobs) and jobs[came][0] <= until:
            with suppress(Refused):
                own[scheduler.offer(jobs[came][0], "one", applied)] = jobs[came]
            came += 1

    while came < len(jobs):
        admit(now)
        batch = scheduler.next_batch(now)
        if batch is None:
            now = jobs[came][0]
            continue
        now += scheduler.costs(batch.exit, len(batch.jobs))
        admit(now)
        for event in scheduler.done(now, batch, [float(own[job][1] == batch.exit) for job in batch.jobs]):
            if isinstance(event, Answered) and now > begin:
                answered += 1
                latency += [now - own[event.job][0]] * (own[event.job][0] > begin)
    return answered / (now - begin) * 1000, sorted(latency)[int(0.99 * len(latency))]


def holding(costs, mix, hold, jobs, seed=0, queue=256):
    """What it gains to let survivors gather while they are passed over `hold` times, and what it costs under twice the load."""
    lines, most = COSTS[costs]
    saturated = arrivals(MIXES[mix], SATURATED, jobs // 2, seed)
    own = simulate(make(Shrinking, lines, most), saturated).rate
    ours = simulate(make(Scheduler, lines, most, hold=hold), saturated).rate
    rate, p99 = overloaded(
        make(Scheduler, lines, most, hold=hold, max_queue=queue), arrivals(MIXES[mix], 2 * ours, jobs, seed + 1)
    )
    return {
        "costs": costs,
        "mix": mix,
        "hold": hold,
        "queue": queue,
        "gain": ours / own,
        "goodput": rate / ours,
        "late": p99 * ours / (1000 * queue),
    }


def whole_cascade(lines, most):
    """Images per second if all exits are run on full batches."""
    return 1000 * most / sum(fixed + each * most for fixed, each in lines)


def setting(costs, mix, jobs, seed):
    """One row of the table."""
    lines, most = COSTS[costs]
    saturated = arrivals(MIXES[mix], SATURATED, jobs // 2, seed)
    own, ours = (simulate(make(kind, lines, most), saturated).rate for kind in (Shrinking, Scheduler))
    row = {"costs": costs, "mix": mix, "seed": seed, "whole": whole_cascade(lines, most), "own": own, "pressure": ours}
    for load in LOADS:
        if load * own > 1.05 * ours:
            continue  # overloaded: the latency would only tell how long the simulation was
        coming = arrivals(MIXES[mix], load * own, jobs, seed)
        kinds = {"pressure": Scheduler} | ({"own": Shrinking} if load < 1 else {})
        row[str(load)] = {name: simulate(make(kind, lines, most), coming).percentiles() for name, kind in kinds.items()}
    fixed, each = lines[0]
    coming = arrivals(MIXES[mix], 0.8 * ours, jobs // 3, seed)
    row["deadlines"] = dict(with_deadlines(make(Scheduler, lines, most), coming, 3 * (fixed + each * most)))
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=12000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out")
    parser.add_argument("--overload", action="store_true")
    options = parser.parse_args()
    if options.overload:
        rows = overload_table(options.jobs)
        store(options, rows)
        return
    rows = []
    print(
        f"{'costs':17} {'mix':9} seed  {'whole':>6} {'own':>6} {'ours':>6}  gain   p99 ms at {LOADS}: own / ours (mean ratio)"
    )
    for costs in COSTS:
        for mix in MIXES:
            for seed in range(options.seeds):
                row = setting(costs, mix, options.jobs, seed)
                rows.append(row)
                cells = []
                for load in LOADS:
                    found = row.get(str(load), {})
                    own, ours = found.get("own"), found.get("pressure")
                    ratio = f" ({ours[3] / own[3]:.2f})" if own and ours else ""
                    cells.append(f"{own[2] if own else float('nan'):.0f} / {ours[2] if ours else float('nan'):.0f}{ratio}")
                gain = row["pressure"] / row["own"] - 1
                ends = row["deadlines"]
                cells.append(f"{1 - ends.get('expired', 0) / (sum(ends.values()) - ends.get('refused', 0)):.2%} on time")
                rates = f"{row['whole']:6.1f} {row['own']:6.1f} {row['pressure']:6.1f}  {gain:+4.0%}"
                print(f"{costs:17} {mix:9} {seed:4}  {rates}   " + "   ".join(cells), flush=True)
    store(options, rows, loads=LOADS)


def overload_table(jobs):
    rows = []
    print("costs             mix       queue hold   gain  images/s under 2.0 / saturated   p99 of admitted / full queue")
    for costs in COSTS:
        for mix in MIXES:
            settings = [(1, 256), (2, 256), (4, 256), (8, 256)] + [(8, 1024)] * (costs != "cpu")
            for hold, queue in settings:
                row = holding(costs, mix, hold, jobs, queue=queue)
                rows.append(row)
                numbers = f"{row['gain']:6.2f} {row['goodput']:31.2f} {row['late']:30.2f}"
                print(f"{costs:17} {mix:9} {queue:5} {hold:4} {numbers}", flush=True)
    return rows


def store(options, rows, **facts):
    if options.out:
        from dynavit.bench.machine import describe_machine

        command = " ".join(["python", "benchmarks/serve/simulate.py", *sys.argv[1:]])
        facts = {"command": command, "machine": describe_machine(), "jobs": options.jobs, **facts}
        write_json(options.out, {**facts, "rows": rows})


if __name__ == "__main__":
    main()
