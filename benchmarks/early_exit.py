"""Does early exit pay? Trained cascades beside single models of their last exit's size, seed by seed.

    python benchmarks/early_exit.py --cascades runs/dvt-seed{0,1,2} --singles runs/single-seed{0,1,2} --data-dir DIR --out FILE

A single model is a cascade with one exit, with `--model dvt_vit_micro --model_options '{splits: [[[3, 2, 1], [3, 2, 1]]]}'`.
Thresholds are found on val, as the cheapest that reach the single model's accuracy there, or, if none do, the most accurate;
and, "in 0.7", as the most accurate with 0.7 of its GMACs. What is printed is of test. Times are taken in turn, of the
same images, for both models. "its exits alone" runs each exit on a batch of the images that reach it, gathered beforehand: what
`predict` adds to that is its overhead.
"""

import argparse
import math
import statistics
from pathlib import Path

import torch

from dynavit.analysis.statistics import mean, t_quantile
from dynavit.bench.exits import exit_gmacs
from dynavit.bench.machine import describe_machine
from dynavit.bench.timing import time_interleaved
from dynavit.common.files import write_json
from dynavit.models.cascade.calibration import simulate, trade_off
from dynavit.models.cascade.policy import EVERYONE, NOBODY, ExitPolicy
from dynavit.runs.calibrate import Exits
from dynavit.runs.subject import Subject

KIND = "max_softmax"
TIMED = {64: 512, 1: 32}  # batch size -> images
REPEATS = 9


def exits_alone(cascade, images, policy, batch):
    """A function that runs every exit on the images that reach it, batch by batch, and nothing else."""
    states = []
    for part in images.split(batch):
        state = cascade.begin(part)
        while len(state):
            states.append(state)
            logits, after = cascade.step(state)
            state = after[~policy.leaves(logits, state.exit)]
    return lambda: [cascade.step(state) for state in states]


def times(cascade, single, images, policy, saving, batch):
    """Milliseconds per image, and ratios with quartiles over the rounds."""
    first = ExitPolicy((EVERYONE,) * len(cascade.exits), KIND)
    last = ExitPolicy((*(NOBODY,) * (len(cascade.exits) - 1), EVERYONE), KIND)
    ways = {"single": lambda: [single(part) for part in images.split(batch)]}
    for name, chosen in (("cascade", policy), ("in 0.7", saving), ("exit 1 only", first), ("all exits", last)):
        ways[name] = lambda chosen=chosen: [cascade.predict(part, chosen) for part in images.split(batch)]
    ways["its exits alone"] = exits_alone(cascade, images, policy, batch)
    found = time_interleaved(ways, repeats=REPEATS, inner=1, warmup=2)
    return {
        "milliseconds": {name: 1e3 * timing.median / len(images) for name, timing in found.items()},
        "cascade / single": found["cascade"].ratio(found["single"]),
        "in 0.7 / single": found["in 0.7"].ratio(found["single"]),
        "predict / its exits alone": found["cascade"].ratio(found["its exits alone"]),
    }


@torch.no_grad()
def judge(cascade_run, single_run, data_dir):
    ours, theirs = (Exits.open(Subject(run=run, data_dir=data_dir), ("val", "test")) for run in (cascade_run, single_run))
    cascade, single = ours.cascade, theirs.cascade
    val, test = (ours.look_at(split, KIND) for split in ("val", "test"))
    goal, single_test = (theirs.look_at(split, KIND).correct.mean() for split in ("val", "test"))
    gmacs = exit_gmacs(cascade, test.images[:1])
    curve = trade_off(val.conf, val.correct, gmacs)
    reached = curve.accuracy.max() >= goal
    point = curve.for_accuracy(goal if reached else curve.accuracy.max())
    policy = ExitPolicy(point.thresholds, KIND)
    single_gmacs = exit_gmacs(single, test.images[:1])[0]
    saving = curve.for_budget(0.7 * single_gmacs)
    on_test, saving_on_test = (simulate(test.conf, test.correct, gmacs, [each.thresholds])[0] for each in (point, saving))
    by_budget = simulate(test.conf, test.correct, gmacs, [curve.for_budget(cost).thresholds for cost in gmacs])
    return {
        "single": {"val": goal, "test": single_test, "gmacs": single_gmacs},
        "cascade": {
            "val": point.accuracy,
            "reaches the single model on val": bool(reached),
            "test": on_test.accuracy,
            "gmacs": on_test.cost,
            "shares": on_test.shares,
            "thresholds": [None if math.isinf(threshold) else threshold for threshold in point.thresholds],
        },
        "in 0.7": {"test": saving_on_test.accuracy, "gmacs": saving_on_test.cost, "shares": saving_on_test.shares},
        "exits": {
            "test": test.correct.mean(1).tolist(),
            "gmacs": gmacs,
            "test with their budgets": by_budget.accuracy.tolist(),
        },
        "times": {
            batch: times(cascade, single, test.images[:count], policy, ExitPolicy(saving.thresholds, KIND), batch)
            for batch, count in TIMED.items()
        },
    }


def interval(values):
    """Mean and 95 % t-interval over seeds."""
    if len(values) < 2:
        return {"mean": values[0]}
    half = t_quantile(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return {"mean": mean(values), "interval95": [mean(values) - half, mean(values) + half]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cascades", type=Path, nargs="+", required=True)
    parser.add_argument("--singles", type=Path, nargs="+", required=True)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [judge(*pair, options.data_dir) for pair in zip(options.cascades, options.singles, strict=True)]
    summary = {
        "single, test": interval([row["single"]["test"] for row in rows]),
        "cascade, test": interval([row["cascade"]["test"] for row in rows]),
        "cascade - single, test": interval([row["cascade"]["test"] - row["single"]["test"] for row in rows]),
        "in 0.7 - single, test": interval([row["in 0.7"]["test"] - row["single"]["test"] for row in rows]),
        "cascade / single, gmacs": interval([row["cascade"]["gmacs"] / row["single"]["gmacs"] for row in rows]),
    }
    for batch in TIMED:
        for name in ("cascade / single", "in 0.7 / single", "predict / its exits alone"):
            summary[f"{name}, time, batch {batch}"] = interval([row["times"][batch][name][0] for row in rows])
        spent = [row["times"][batch]["milliseconds"] for row in rows]
        summary |= {f"{name}, ms per image, batch {batch}": interval([each[name] for each in spent]) for name in spent[0]}
    for at in range(len(rows[0]["exits"]["gmacs"])):
        summary[f"exit {at + 1}, test"] = interval([row["exits"]["test"][at] for row in rows])
        name = f"with the budget of exit {at + 1} - exit {at + 1}, test"
        summary[name] = interval([row["exits"]["test with their budgets"][at] - row["exits"]["test"][at] for row in rows])
    for name, found in summary.items():
        low, high = found.get("interval95", (math.nan, math.nan))
        print(f"{name:48s} {found['mean']:8.4f}  [{low:.4f}, {high:.4f}]")
    if options.out is not None:
        write_json(options.out, {"machine": describe_machine(), "timed images": TIMED, "summary": summary, "seeds": rows})


if __name__ == "__main__":
    main()
