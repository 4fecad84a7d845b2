"""A training step on a CPU: precision, form of attention, and whether freed memory is kept; the model of the recipe cifar10.

    python benchmarks/cpu_steps.py [--quiet] [--out FILE]

Each way runs in processes of its own, because memory is managed by the process, all ways in turn. Milliseconds of CPU time of
one thread for forward and backward pass of 128 images: the median of 15 steps, then that of the rounds. Beside them attention
alone in bfloat16, fused and written out, forward and backward.
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from dynavit.bench.machine import describe_machine
from dynavit.common.files import write_json

WAYS = {  # precision, attention written out, freed memory kept
    "float32": ("float32", "1", "0"),
    "float32, memory kept": ("float32", "1", "1"),
    "bfloat16, fused attention": ("bfloat16", "0", "0"),
    "bfloat16, attention written out": ("bfloat16", "1", "0"),
    "bfloat16, written out, memory kept": ("bfloat16", "1", "1"),
}
STEP = """
import statistics, sys, time
import torch, yaml
import dynavit
from dynavit.cli.recipes import DIRECTORY
from dynavit.engine.memory import keep_freed_memory
from dynavit.models import attend
norm, precision, written_out, kept = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(0)
if kept == "1":
    assert keep_freed_memory()
if written_out == "0":
    attend.KEPT = 0
options = yaml.safe_load((DIRECTORY / "cifar10.yaml").read_text())["model_options"]
model = dynavit.create_model("vit_mini", norm=norm, num_classes=10, img_size=32, **options)
images, labels = torch.randn(128, 3, 32, 32), torch.randint(10, (128,))
found = []
for _ in range(20):
    start = time.process_time()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    model.zero_grad(set_to_none=True)
    found.append(1e3 * (time.process_time() - start))
print(statistics.median(found[5:]))
"""


ATTENTION = """
import sys, time
import torch
from dynavit.bench.timing import time_interleaved
from dynavit.models import attend
torch.set_num_threads(1)
shape = b, h, t, d = [int(word) for word in sys.argv[1:]]
x = torch.randn(b, t, 3 * h * d).bfloat16().requires_grad_()
def way(kept):
    def run():
        attend.KEPT = kept
        q, k, v = x.unflatten(-1, (3, h, -1)).permute(2, 0, 3, 1, 4)
        attend.attend(q, k, v).sum().backward()
    return run
found = time_interleaved({"fused": way(0), "out": way(t * t)}, repeats=9, inner=1, warmup=2, clock=time.process_time)
print(1e3 * found["fused"].median, 1e3 * found["out"].median)
"""
SHAPES = ((128, 4, 64, 24), (128, 3, 65, 64), (64, 3, 197, 64), (32, 9, 196, 48))  # samples, heads, tokens, channels of a head


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quiet", action="store_true", help="nothing else is running: times can be trusted")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    found = {norm: {way: [] for way in WAYS} for norm in ("ln", "dtn")}
    for _ in range(given.rounds):
        for norm, times in found.items():
            for way, options in WAYS.items():
                said = subprocess.check_output([sys.executable, "-c", STEP, norm, *options], env=environment, text=True)
                times[way].append(float(said))
    table = {norm: {way: statistics.median(each) for way, each in times.items()} for norm, times in found.items()}
    for norm, times in table.items():
        for way, spent in times.items():
            print(f"{norm:4} {way:36} {spent:6.1f} ms  {times['float32'] / spent:.2f} times as fast as float32")
    attention = {}
    for shape in SHAPES:
        said = subprocess.check_output([sys.executable, "-c", ATTENTION, *map(str, shape)], env=environment, text=True)
        fused, out = map(float, said.split())
        attention[str(shape)] = {"fused": fused, "written out": out}
        print(f"attention {shape}: fused {fused:.1f} ms, written out {out:.1f} ms, {fused / out:.1f} times as fast")
    if given.out is not None:
        command = f"python benchmarks/cpu_steps.py --rounds {given.rounds}" + " --quiet" * given.quiet
        facts = {"command": command, "quiet": given.quiet}
        write_json(
            given.out, facts | {"machine": describe_machine(), "milliseconds": table, "rounds": found, "attention": attention}
        )


if __name__ == "__main__":
    main()
