"""DTN of images in padded batches next to nn.LayerNorm, in CPU time: `python benchmarks/dtn_padded_grids.py --out FILE.json`.

Stage 1 of a pyramid on images of 256x320 pixels: four images of different sizes in a batch of 64x80 tokens with 64 channels, by
heads, start and pooling; with --large also one image of 190x333 tokens in 200x336 (800x1333 pixels). Forward and backward, CPU
time of one thread, because the machine may be shared; rounds are interleaved, and the ratio is that of each round. LayerNorm
computes the padding too, as it does in a model without masks.
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

DIM = 64
BATCHES = {"64x80": ((64, 80), [(64, 80), (50, 80), (64, 60), (40, 70)]), "200x336": ((200, 336), [(190, 333)])}


def batch(grid, sizes):
    """Tokens, a gradient of the output, and the mask."""
    x = torch.randn(len(sizes), grid[0] * grid[1], DIM, requires_grad=True)
    mask = torch.zeros(len(sizes), *grid, dtype=torch.bool)
    for image, (rows, cols) in zip(mask, sizes, strict=True):
        image[:rows, :cols] = True
    return x, torch.randn_like(x), mask.flatten(1)


def seconds(norm, x, grad, **call):
    start = time.process_time()
    norm(x, **call).backward(grad)
    taken = time.process_time() - start
    x.grad = None
    return taken


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--large", action="store_true", help="also 200x336 tokens")
    parser.add_argument("--quiet", action="store_true", help="nothing else ran on the machine")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for name, (grid, sizes) in BATCHES.items() if chosen.large else [("64x80", BATCHES["64x80"])]:
        x, grad, mask = batch(grid, sizes)
        norms = {
            f"dtn {init}, {heads} heads, pool {pool}": create_norm("dtn", DIM, heads=heads, init=init, pool=pool)
            for init in ("local", "trunc_normal")
            for heads in (1, 2, 4)
            for pool in (1, 4)
        }
        layer_norm = torch.nn.LayerNorm(DIM)
        pairs = {kind: [] for kind in norms}
        for round in range(chosen.repeats + 1):
            for kind, norm in norms.items():
                pair = seconds(norm, x, grad, grid=grid, mask=mask), seconds(layer_norm, x, grad)
                if round:
                    pairs[kind].append(pair)
        for kind, own in pairs.items():
            low, middle, high = statistics.quantiles([ours / theirs for ours, theirs in own], n=4)
            least = min(ours for ours, _ in own) / min(theirs for _, theirs in own)
            milliseconds = 1000 * statistics.median(ours for ours, _ in own)
            row = {"grid": name, "name": kind, "cpu_ms": milliseconds, "ratio": middle, "quartiles": [low, high]}
            rows.append(row | {"ratio_of_least": least})
            spread = f"({low:.2f} to {high:.2f}), least {least:.2f}"
            print(f"{name:8} {kind:36} {milliseconds:8.1f} ms  {middle:5.2f}  {spread}", flush=True)
    if chosen.out:
        facts = describe_machine() | {
            "native_dtn_kernel": native_kernel_available(),
            "quiet": chosen.quiet,
            "repeats": chosen.repeats,
        }
        shapes = {name: {"grid": grid, "images": sizes, "dim": DIM} for name, (grid, sizes) in BATCHES.items()}
        write_json(chosen.out, {"machine": facts, "shapes": shapes, "clock": "CPU time of one thread", "rows": rows})


if __name__ == "__main__":
    main()
