"""Does early exit pay for a pre-trained ViT? A fine-tuned cascade beside the same ViT fine-tuned with few, more and all tokens.

    python benchmarks/pretrained_cascade.py --cascade runs/dvt --singles runs/14 runs/10 runs/7 --data-dir PHOTOS --out FILE

The first single model is the one that the cascade shall be as right as. Validation images are cut in halves as by `dynavit
calibrate`. Thresholds come from one half and are judged on the other, then the other way round, so that every image is judged
once: "as right" are the cheapest that are right as often as the first single model on the half they come from (or, if none
are, the most often right), and the curve has the best for each budget. Time is CPU time of one thread, all models in turn.
"""

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch

from dynavit.bench.exits import exit_gmacs
from dynavit.bench.flops import count_macs
from dynavit.bench.machine import describe_machine
from dynavit.bench.timing import time_interleaved
from dynavit.common.files import write_json
from dynavit.models.cascade.calibration import simulate, trade_off
from dynavit.models.cascade.policy import EVERYONE, NOBODY, ExitPolicy
from dynavit.runs.calibrate import Exits
from dynavit.runs.subject import Subject

KIND = "max_softmax"
TIMED = {64: 64, 1: 8}  # batch size -> images
REPEATS = 5
CURVE = 25  # budgets


def single_answers(run, data_dir, halves):
    """The model, whether it is right about each image of the halves, and its images."""
    opened = Subject(run=run, data_dir=data_dir).open()
    batches = [batch for (batch,) in opened.loader("val", 100).epoch()]
    inputs, targets = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("inputs", "targets"))
    right = torch.cat([opened.model(part).argmax(-1) for part in inputs.split(50)]) == targets
    return opened.model, [right[half].numpy() for half in halves], inputs


def evenly(images, count):
    return images[torch.linspace(0, len(images) - 1, count).round().long()]


def milliseconds(ways, count):
    found = time_interleaved(ways, repeats=REPEATS, inner=1, warmup=0, clock=time.process_time)
    return {name: 1e3 * timing.median / count for name, timing in found.items()}, found


@torch.no_grad()
def judge(cascade_run, single_runs, data_dir):
    exits = Exits.open(Subject(run=cascade_run, data_dir=data_dir), ("val", "test"))
    cascade, count = exits.cascade, len(exits.cascade.exits)
    seen = [exits.look_at(split, KIND) for split in exits.splits]
    whole = exits.opened.data.splits["val"]
    halves = [positions_of(exits.opened.data.splits[split], whole) for split in exits.splits]
    singles = {run.name: single_answers(run, data_dir, halves) for run in single_runs}
    first = next(iter(singles.values()))
    gmacs = exit_gmacs(cascade, seen[0].images[:1])
    result = {
        "judged images": sum(each.conf.shape[1] for each in seen),
        "singles": {
            name: {
                "top1": float(np.concatenate(right).mean()),
                "top1 of halves": [float(half.mean()) for half in right],
                "gmacs": count_macs(model, inputs[:1]) / 1e9,
            }
            for name, (model, right, inputs) in singles.items()
        },
        "exits": {"top1": np.concatenate([each.correct for each in seen], 1).mean(1).tolist(), "gmacs": gmacs},
    }
    policies = []
    for found_on, goal in zip(seen, first[1], strict=True):
        curve = trade_off(found_on.conf, found_on.correct, gmacs)
        policies.append(curve.for_accuracy(min(goal.mean(), curve.accuracy.max())).thresholds)
    result["as right as the first"] = judged(seen, policies, gmacs)
    up_to = {f"exit {k + 1}": (*(NOBODY,) * k, *(EVERYONE,) * (count - k)) for k in range(count)}
    for batch, images in TIMED.items():
        ways = {name: forward(model, evenly(inputs, images), batch) for name, (model, _, inputs) in singles.items()}
        ways |= {name: prediction(cascade, evenly(seen[0].images, images), each, batch) for name, each in up_to.items()}
        for half, thresholds in enumerate(policies):  # on the half that they do not come from
            ways[f"as right {half}"] = prediction(cascade, evenly(seen[1 - half].images, images), thresholds, batch)
        spent, timings = milliseconds(ways, images)
        base = timings[single_runs[0].name]
        costs = [spent[name] for name in up_to]
        result[f"batch {batch}"] = {
            "milliseconds": spent,
            "time / first single model": {name: timing.ratio(base) for name, timing in timings.items()},
            "curve": budget_curve(seen, costs),
        }
    return result


def positions_of(part, whole):
    """Where the files of a part stand in the whole."""
    at = {str(path): place for place, path in enumerate(whole.paths)}
    return torch.tensor([at[str(path)] for path in part.paths])


def forward(model, images, batch):
    return lambda: [model(part) for part in images.split(batch)]


def prediction(cascade, images, thresholds, batch):
    policy = ExitPolicy(thresholds, KIND)
    return lambda: [cascade.predict(part, policy) for part in images.split(batch)]


def judged(seen, policies, cost):
    """Thresholds found on each half, on the other half; means over all images."""
    found = [simulate(each.conf, each.correct, cost, [own])[0] for each, own in zip(reversed(seen), policies, strict=True)]
    weights = [each.conf.shape[1] for each in reversed(seen)]
    return {
        "top1": float(np.average([point.accuracy for point in found], weights=weights)),
        "top1 of halves": [point.accuracy for point in reversed(found)],
        "cost": float(np.average([point.cost for point in found], weights=weights)),
        "shares": np.average([point.shares for point in found], 0, weights).tolist(),
        "thresholds": [[None if math.isinf(each) else each for each in own] for own in policies],
    }


def budget_curve(seen, costs):
    """Accuracy and cost of the most accurate thresholds for budgets between the first exit's cost and the last one's."""
    curves = [trade_off(each.conf, each.correct, costs) for each in seen]
    rows = []
    for budget in np.linspace(costs[0], costs[-1], CURVE):
        found = judged(seen, [curve.for_budget(budget).thresholds for curve in curves], costs)
        rows.append([round(found["cost"], 4), found["top1"]])
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cascade", type=Path, required=True)
    parser.add_argument("--singles", type=Path, nargs="+", required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--quiet", action="store_true", help="nothing else was running on the machine")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    command = "python benchmarks/pretrained_cascade.py --cascade RUN --singles RUN... --data-dir PHOTOS --out FILE"
    about = {"command": command, "machine": describe_machine(), "quiet": given.quiet, "clock": "CPU time of one thread"}
    result = about | judge(given.cascade, given.singles, given.data_dir)
    write_json(given.out, result)
    for name, each in result["singles"].items():
        print(f"{name}: top-1 {each['top1']:.2%}, {result['batch 64']['milliseconds'][name]:.1f} ms")
    print("exits", result["exits"], "\nas right:", result["as right as the first"])


if __name__ == "__main__":
    main()
