"""Fine-tuned runs of several arms: accuracy by seed, differences to the first arm paired by seed, CPU time of a training step.

    python benchmarks/finetuned.py --arms ln dtn-identity dtn-near --runs RUNS --out FILE

The run of an arm and a seed is RUNS/ARM-seedS; runs that are not finished are left out. A step is forward, backward and AdamW
on 32 images of the model as its run left it, arms in turn, in CPU time of one thread.
"""

import argparse
import time
from pathlib import Path

import torch
from torch.nn import functional as F

import dynavit
from dynavit.analysis.statistics import mean, paired_difference, standard_error
from dynavit.bench.machine import describe_machine
from dynavit.bench.timing import time_interleaved
from dynavit.common.files import read_json, write_json
from dynavit.runs.directory import RunDirectory

SPLIT, BATCH, REPEATS = "val", 32, 5


def results_of(runs, arm):
    """Top-1 and loss by seed."""
    found = {}
    for path in sorted(runs.glob(f"{arm}-seed*")):
        run = RunDirectory(path)
        if run.finished() is not None:
            found[int(path.name.rpartition("seed")[2])] = read_json(run.evaluation_file(SPLIT))
    return found


def training_step(run, images, labels):
    model = dynavit.load(run).train()
    optimiser = torch.optim.AdamW(dynavit.parameter_groups(model, weight_decay=0.05, lr=1e-6), lr=1e-6)

    def step():
        optimiser.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimiser.step()

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--quiet", action="store_true", help="nothing else was running on the machine")
    parser.add_argument("--plugin", type=Path, action="append", default=[], help="of an arm's norm, as the training had it")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    for plugin in given.plugin:
        dynavit.load_plugin(plugin)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = torch.randn(BATCH, 3, 224, 224), torch.randint(10, (BATCH,))
    results = {arm: results_of(given.runs, arm) for arm in given.arms}
    results = {arm: found for arm, found in results.items() if found}
    steps = {arm: training_step(given.runs / f"{arm}-seed{min(found)}", images, labels) for arm, found in results.items()}
    times = time_interleaved(steps, repeats=REPEATS, inner=1, warmup=0, clock=time.process_time)
    base, rows = given.arms[0], {}
    for arm, found in results.items():
        top1 = {seed: each["top1"] for seed, each in found.items()}
        against = paired_difference(top1, {seed: each["top1"] for seed, each in results[base].items()})
        rows[arm] = {
            "top1 by seed": top1,
            "loss by seed": {seed: each["loss"] for seed, each in found.items()},
            "mean": mean(list(top1.values())),
            "standard error": standard_error(list(top1.values())),
            "difference": None if arm == base or against is None else {"mean": against.mean, "interval95": against.interval},
            "CPU seconds of a step": times[arm].median,
            f"step / {base}": times[arm].ratio(times[base]),
        }
        print(arm, rows[arm])
    command = f"python benchmarks/finetuned.py --arms {' '.join(given.arms)} --runs RUNS --out FILE"
    samples = next(iter(results[base].values()))["samples"]
    about = {"command": command, "machine": describe_machine(), "quiet": given.quiet, "split": SPLIT, "images": samples}
    write_json(given.out, about | {"arms": rows})


if __name__ == "__main__":
    main()
