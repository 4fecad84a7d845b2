"""Cascades trained from scratch beside single models of several sizes: accuracy on test over time, images really leaving.

    python benchmarks/cascade_envelope.py --cascades RUNS/cascade-seed{0,1,2} --goals RUNS/ln-seed{0,1,2} \\
        --others RUNS/single-* --data-dir DIR --out FILE

A cascade and the goal of the same place in the list are a pair. Thresholds come from validation: "early exit" are the cheapest
with the goal's accuracy there less 0.1 points (or, if none has it, the most accurate), "most accurate" those with the highest.
They are judged on all of test, and timed on part of it: `predict`, images leave. So are a few thresholds of the release's grid,
which let fixed shares of the validation images leave, however right they are. The curve has all of that grid, with times added
up from those of the exits. "crossed" is for few validation images: both rules, on validation and one half of test, judged on
the other half, then the other way round. Differences to the goal have a 95 % interval over images, which holds the training
fixed. Time is CPU time of one thread, all models of a pair in turn.
"""

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from pretrained_cascade import evenly, forward, prediction

from dynavit.analysis.statistics import mean, paired_difference
from dynavit.bench.exits import exit_gmacs
from dynavit.bench.flops import count_macs
from dynavit.bench.machine import describe_machine
from dynavit.bench.timing import time_interleaved
from dynavit.common.files import write_json
from dynavit.models.cascade.calibration import released_thresholds, simulate, trade_off
from dynavit.models.cascade.policy import EVERYONE, NOBODY, ExitPolicy
from dynavit.runs.calibrate import Exits
from dynavit.runs.subject import Subject

KIND = "max_softmax"
SLACK = 0.001  # of validation accuracy, as planned
TIMED = {64: 1280, 1: 256}  # batch size -> images
EXECUTED = (2, 5, 9, 13)  # p of the release's grid: of two exits 91, 80, 69, 61 % leave at the first
CURVE = range(1, 60)


@torch.no_grad()
def answers(run, data_dir):
    """A single model, and whether it is right, image by image, on val and test."""
    opened = Subject(run=run, data_dir=data_dir).open()
    found = {}
    for split in ("val", "test"):
        batches = [batch for (batch,) in opened.loader(split, 500).epoch()]
        found[split] = torch.cat([opened.model(batch.inputs).argmax(-1) == batch.targets for batch in batches]).numpy()
    return opened.model, found


@torch.no_grad()
def judge(cascade_run, single_runs, data_dir, repeats):
    """One cascade and single models, the first of which is its goal."""
    exits = Exits.open(Subject(run=cascade_run, data_dir=data_dir), ("val", "test"))
    cascade, count = exits.cascade, len(exits.cascade.exits)
    val, test = (exits.look_at(split, KIND) for split in ("val", "test"))
    singles = {run.name: answers(run, data_dir) for run in single_runs}
    rival = next(iter(singles.values()))[1]
    goal = rival["val"].mean() - SLACK
    some = test.images[:1]
    alone = {"val": val.correct.mean(1).tolist(), "test": test.correct.mean(1).tolist(), "gmacs": exit_gmacs(cascade, some)}
    result = {
        "singles": {
            name: {split: float(each.mean()) for split, each in right.items()} | {"gmacs": count_macs(model, some) / 1e9}
            for name, (model, right) in singles.items()
        },
        "exits": alone,
        "test images": test.conf.shape[1],
    }
    up_to = {f"exit {k + 1}": (*(NOBODY,) * k, *(EVERYONE,) * (count - k)) for k in range(count)}
    pixels = images_of(exits.opened, "test")
    for batch, images in TIMED.items():
        timed = evenly(pixels, images)
        ways = {name: prediction(cascade, timed, each, batch) for name, each in up_to.items()}
        exit_times = list(milliseconds(in_turn(ways, repeats), images).values())
        curve = trade_off(val.conf, val.correct, exit_times)
        reached = bool(curve.accuracy.max() >= goal)
        chosen = {"early exit": curve.for_accuracy(goal if reached else curve.accuracy.max())}
        chosen |= {"most accurate": curve.for_accuracy(curve.accuracy.max())}
        grid = simulate(val.conf, val.correct, exit_times, released_thresholds(val.conf, EXECUTED))
        chosen |= {f"grid p={p}": grid[at] for at, p in enumerate(EXECUTED)}
        ways |= {name: forward(model, timed, batch) for name, (model, _) in singles.items()}
        ways |= {name: prediction(cascade, timed, point.thresholds, batch) for name, point in chosen.items()}
        crossed = cross(val, test, rival, exit_times)
        ways |= {name: crossed_prediction(cascade, pixels, images // 2, points, batch) for name, points in crossed.items()}
        timings = in_turn(ways, repeats)
        spent = milliseconds(timings, images)
        costs = [spent[name] for name in up_to]
        on_test = simulate(test.conf, test.correct, costs, [point.thresholds for point in chosen.values()])
        judged = simulate(test.conf, test.correct, costs, released_thresholds(val.conf, CURVE))
        base = timings[single_runs[0].name]
        result[f"batch {batch}"] = {
            "goal reached on val": reached,
            "early exit": {
                name: {
                    "val": point.accuracy,
                    "test": float(on_test.accuracy[at]),
                    "test - goal, over images": over_images(right_at(test, point), rival["test"]),
                    "shares": on_test.shares[at].tolist(),
                    "threshold": None if math.isinf(point.thresholds[0]) else point.thresholds[0],
                    "left at exit 1 of the timed": left_first(cascade, timed, point),
                }
                for at, (name, point) in enumerate(chosen.items())
            },
            "crossed": {
                name: {
                    "test": float(crossed_right(test, points).mean()),
                    "test - goal, over images": over_images(crossed_right(test, points), rival["test"]),
                    "thresholds": [point.thresholds[0] for point, _ in points],
                }
                for name, points in crossed.items()
            },
            "milliseconds": spent,
            "time / goal": {name: timing.ratio(base) for name, timing in timings.items()},
            "curve": list(zip(judged.cost.round(4).tolist(), judged.accuracy.tolist(), strict=True)),
        }
    return result


def right_at(seen, point):
    """Whether each image is answered rightly by the exit where it leaves."""
    sure = seen.conf >= np.asarray(point.thresholds)[:, None]
    sure[-1] = True
    leaves = sure.argmax(0)
    return seen.correct[leaves, np.arange(len(leaves))]


def cross(val, test, rival, exit_times):
    """Rule -> for each half of test: thresholds that come from validation and the other half, and the places of its images."""
    halves = [np.arange(start, test.conf.shape[1], 2) for start in (0, 1)]
    found = {"crossed, early exit": [], "crossed, most accurate": []}
    for judged, seen in (halves, halves[::-1]):
        conf = np.concatenate([val.conf, test.conf[:, seen]], 1)
        curve = trade_off(conf, np.concatenate([val.correct, test.correct[:, seen]], 1), exit_times)
        best = curve.accuracy.max()
        aim = np.concatenate([rival["val"], rival["test"][seen]]).mean() - SLACK
        for points, accuracy in zip(found.values(), (min(aim, best), best), strict=True):
            points.append((curve.for_accuracy(accuracy), judged))
    return found


def crossed_prediction(cascade, pixels, images, points, batch):
    parts = [prediction(cascade, evenly(pixels[half], images), point.thresholds, batch) for point, half in points]
    return lambda: [part() for part in parts]


def crossed_right(test, points):
    right = np.zeros(test.conf.shape[1], bool)
    for point, half in points:
        right[half] = right_at(test, point)[half]
    return right


def over_images(ours, theirs):
    """The mean difference, and the reach of its 95 % interval to each side."""
    difference = ours.astype(float) - theirs
    return [float(difference.mean()), 1.96 * float(difference.std(ddof=1)) / math.sqrt(len(difference))]


def images_of(opened, split):
    return torch.cat([batch.inputs for (batch,) in opened.loader(split, 500).epoch()])


def left_first(cascade, images, point):
    """The share of these images that leaves at exit 1."""
    exits = [cascade.predict(part, ExitPolicy(point.thresholds, KIND)).exit for part in images.split(64)]
    return float((torch.cat(exits) == 0).float().mean())


def milliseconds(timings, images):
    """Of an image, by way."""
    return {name: 1e3 * timing.median / images for name, timing in timings.items()}


def in_turn(ways, repeats):
    return time_interleaved(ways, repeats=repeats, inner=1, warmup=1, clock=time.process_time)


def summary(rows, goals):
    """Differences to the goals over seeds, in points, and quotients of time."""
    found = {}
    for batch in TIMED:
        parts = [row[f"batch {batch}"] for row in rows]
        ours = dict(enumerate(part["early exit"]["early exit"]["test"] for part in parts))
        theirs = dict(enumerate(row["singles"][goal.name]["test"] for row, goal in zip(rows, goals, strict=True)))
        ratios = [part["time / goal"]["early exit"][0] for part in parts]
        difference = paired_difference(ours, theirs)
        found[f"batch {batch}"] = {
            "test, early exit - goal": difference and [difference.mean, difference.interval and list(difference.interval)],
            "time / goal": [mean(ratios), ratios],
            "seeds that reach the goal on val": sum(part["goal reached on val"] for part in parts),
        }
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cascades", type=Path, nargs="+", required=True)
    parser.add_argument("--goals", type=Path, nargs="+", required=True, help="a single model for each cascade")
    parser.add_argument("--others", type=Path, nargs="*", default=[], help="further single models, timed with the first pair")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quiet", action="store_true", help="nothing else was running on the machine")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for cascade, goal in zip(given.cascades, given.goals, strict=True):
        rows.append(judge(cascade, [goal, *([] if rows else given.others)], given.data_dir, given.repeats))
    command = "python benchmarks/cascade_envelope.py --cascades RUN... --goals RUN... --others RUN... --data-dir DIR --out FILE"
    about = {"command": command, "machine": describe_machine(), "quiet": given.quiet, "clock": "CPU time of one thread"}
    result = about | {"summary": summary(rows, given.goals), "seeds": rows}
    write_json(given.out, result)
    for name, found in result["summary"].items():
        print(name, found)


if __name__ == "__main__":
    main()
