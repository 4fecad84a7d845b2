"""The cost of a step of self-distillation by norm and place of the class token, interleaved, in CPU time.

    python benchmarks/dino_step.py --config benchmarks/dino_tier.yaml --data-dir DIR --out FILE [--steps 20] [--quiet]

One step of each arm after the other, so that a busy machine slows all of them; ratios are
medians over steps of the time against the first arm's. `--quiet` says that nothing else was running.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from dynavit.bench.machine import describe_machine
from dynavit.common.files import write_json
from dynavit.engine.optimiser import make_optimiser, set_lr
from dynavit.runs.assemble import open_training_data, training_task
from dynavit.runs.config import TrainConfig, from_plain

ARMS = {"ln, late": ("ln", "late"), "ln, start": ("ln", "start"), "dtn": ("dtn", "late")}


class Arm:
    """A task with its optimiser and batches; `step` makes one step and returns its CPU seconds."""

    def __init__(self, options, data):
        config = from_plain(TrainConfig, options)
        self.task, loader = training_task(config, data)
        self.task.train()
        self.optimiser = make_optimiser(self.task, config.optim, torch.device("cpu"))
        set_lr(self.optimiser, 1e-4)
        self.batches = loader.epoch(0)

    def step(self):
        start = time.process_time()
        (batch,) = next(self.batches)
        self.task.forget_statistics()
        self.optimiser.zero_grad(set_to_none=True)
        self.task(batch)["loss"].backward()
        self.task.before_update()
        self.optimiser.step()
        self.task.commit_statistics()
        return time.process_time() - start


def main():
    import yaml

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path(__file__).with_name("dino_tier.yaml"))
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--quiet", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    recipe = yaml.safe_load(given.config.read_text()) | {"data_dir": str(given.data_dir)}
    data = open_training_data(from_plain(TrainConfig, recipe))
    arms = {}
    for name, (norm, token) in ARMS.items():
        options = json.loads(json.dumps(recipe)) | {"norm": norm}
        options["model_options"]["class_token"] = token
        arms[name] = Arm(options, data)
    times = {name: [] for name in arms}
    for number in range(given.steps + 1):
        for name, arm in arms.items():
            seconds = arm.step()
            if number:  # the first one warms up
                times[name].append(seconds)
    first = times["ln, late"]
    result = {
        "machine": describe_machine(),
        "quiet": given.quiet,
        "config": given.config.name,
        "steps": given.steps,
        "cpu_seconds_of_a_step": {name: statistics.median(each) for name, each in times.items()},
        "ratio_to_ln_late": {
            name: statistics.median(a / b for a, b in zip(each, first, strict=True)) for name, each in times.items()
        },
    }
    write_json(given.out, result)
    print(json.dumps({name: result[name] for name in ("cpu_seconds_of_a_step", "ratio_to_ln_late")}, indent=2))


if __name__ == "__main__":
    main()
