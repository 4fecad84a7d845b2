"""Training steps of small models, DTN next to LN, interleaved in one process.

    python benchmarks/small_steps.py --threads 1 [--data-dir DATA] [--out FILE]

`vit_micro` on digits, and with --data-dir `vit_mini` and the recipe `cifar10` on CIFAR-10. The ratio is that of each round.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch
import yaml

from dynavit import TrainConfig
from dynavit.bench.machine import describe_machine
from dynavit.cli.recipes import DIRECTORY
from dynavit.common.files import write_json
from dynavit.engine.optimiser import make_optimiser, set_lr
from dynavit.runs.assemble import training_task
from dynavit.runs.config import from_plain

ROUNDS, WARM_UP = 60, 5


def step_of(config):
    task, loader = training_task(config)
    task.train()
    optimiser = make_optimiser(task, config.optim, torch.device("cpu"))
    set_lr(optimiser, 1e-4)
    batch = next(iter(loader.epoch(0, 0)))[0].to(torch.device("cpu"), torch.float32)

    def step():
        start = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        task(batch)["loss"].backward()
        torch.nn.utils.clip_grad_norm_(task.parameters(), 1.0)
        optimiser.step()
        return time.perf_counter() - start

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    cases = {"vit_micro, digits, batch 64": {"model": "vit_micro", "data": "digits", "batch_size": 64}}
    if options.data_dir:
        cifar = {"data": "cifar10", "data_dir": str(options.data_dir), "batch_size": 128}
        cases["vit_mini, cifar10, batch 128"] = {"model": "vit_mini", **cifar}
        cases["recipe cifar10"] = yaml.safe_load((DIRECTORY / "cifar10.yaml").read_text()) | cifar
    rows = {}
    for name, config in cases.items():
        ln, dtn = (step_of(from_plain(TrainConfig, config | {"norm": norm})) for norm in ("ln", "dtn"))
        times = [(ln(), dtn()) for _ in range(ROUNDS)][WARM_UP:]
        low, middle, high = statistics.quantiles([other / own for own, other in times], n=4)
        rows[name] = {
            "ln_ms": 1e3 * statistics.median(own for own, _ in times),
            "dtn_over_ln": [middle, low, high],
        }
        print(f"{name}: DTN / LN {middle:.3f} ({low:.3f} to {high:.3f})", flush=True)
    if options.out:
        facts = {"command": f"python benchmarks/small_steps.py --threads {options.threads}", "quiet": True}
        write_json(options.out, facts | {"machine": describe_machine(), "rows": rows})


if __name__ == "__main__":
    main()
