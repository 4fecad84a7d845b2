"""DTN on padded sequences next to nn.LayerNorm, in CPU time: `python benchmarks/dtn_sequences.py --out FILE.json`.

ListOps as it is run: T = 2000 tokens, half of them padding on the right (uniform lengths from 501 to 1999 beside the mean of
1,041), with and without the mask. CPU time of one thread, because the machine may be shared; rounds are interleaved, and the
ratio is that of each round. LayerNorm always computes all 2,000 tokens, as it does in a model without masks.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch

from dynavit.bench.machine import describe_machine
from dynavit.common.files import write_json
from dynavit.norms import create_norm
from dynavit.norms.dtn.native.build import native_kernel_available

BATCH, TOKENS, DIM, HEADS = 4, 2000, 512, 8


def step(norm, x, grad, **call):
    def run():
        start = time.process_time()
        y = norm(x, **call)
        y.backward(grad)
        return time.process_time() - start

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(BATCH, 1 + TOKENS, DIM, requires_grad=True)
    grad = torch.randn_like(x)
    lengths = torch.tensor([600, 963, 1041, 1655])
    mask = torch.arange(1 + TOKENS) <= lengths[:, None]
    options = {"heads": HEADS, "ndim": 1, "num_prefix_tokens": 1}
    steps = {"nn.LayerNorm": step(torch.nn.LayerNorm(DIM), x, grad)}
    for name, own in (("local", {}), ("trunc_normal", {"init": "trunc_normal"})):
        for radius in (8, 16):
            norm = create_norm("dtn", DIM, **options, **own, radius=radius)
            call = {"grid": (TOKENS,)}
            steps[f"dtn {name}, radius {radius}"] = step(norm, x, grad, **call)
            steps[f"dtn {name}, radius {radius}, padded"] = step(norm, x, grad, **call, mask=mask)
    for name in ("ln", "bn", "in", "gn"):
        norm = create_norm(name, DIM, heads=HEADS)
        steps[f"{name}, padded"] = step(norm, x, grad, mask=mask)
    seconds = {name: [] for name in steps}
    for round in range(chosen.repeats + 1):
        for name, run in steps.items():
            taken = run()
            x.grad = None
            if round:
                seconds[name].append(taken)
    rows = []
    for name, own in seconds.items():
        ratios = [a / b for a, b in zip(own, seconds["nn.LayerNorm"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        milliseconds = 1000 * statistics.median(own)
        least = min(own) / min(seconds["nn.LayerNorm"])  # other work on the machine only ever adds time
        row = {"name": name, "cpu_ms": milliseconds, "ratio": middle, "quartiles": [low, high], "ratio_of_least": least}
        rows.append(row)
        print(f"{name:40} {milliseconds:8.1f} ms  {middle:5.2f}  ({low:.2f} to {high:.2f}), least {least:.2f}", flush=True)
    if chosen.out:
        shape = {"batch": BATCH, "tokens": TOKENS, "dim": DIM, "heads": HEADS, "lengths": lengths.tolist()}
        facts = describe_machine() | {"native_dtn_kernel": native_kernel_available(), "quiet": False, "repeats": chosen.repeats}
        write_json(chosen.out, {"machine": facts, "shape": shape, "clock": "CPU time of one thread", "rows": rows})


if __name__ == "__main__":
    main()
