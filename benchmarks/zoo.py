"""Norms of the zoo beside nn.LayerNorm and beside torch's module for the same function, forward and backward, interleaved.

    python benchmarks/zoo.py [--norms bn,gn] [--threads 2] [--processor-time] [--quiet] [--out FILE]

Three shapes: A (ViT-S* at 224 px), 64 x 64 x 64, and those of `vit_micro` on digits. Annealed norms are measured while they are
LayerNorm alone, in the middle of a run and at its end; norms with a memory also as our training loop uses them, deferred.
Medians of the ratios of rounds, with quartiles; next to them what was wanted.
"""

import argparse
import time
from functools import partial
from pathlib import Path

import torch
from torch import nn

from dynavit import create_norm
from dynavit.bench.machine import describe_machine
from dynavit.bench.timing import time_interleaved
from dynavit.common.files import write_json
from dynavit.norms.annealed import AnnealedNorm

SHAPES = {"A": (8, 196, 432, 9), "64x64x64": (64, 64, 64, 4), "digits": (64, 16, 48, 3)}  # batch, tokens, channels, heads
TURN = 0.004  # seconds of a contestant's turn, about
OF_TORCH = 1.3  # wanted: times torch's module, at every shape
OF_LAYER_NORM = {  # wanted: times nn.LayerNorm, at A and at 64 x 64 x 64
    "un": 3,
    "zscore": 3,
    "minmax": 3,
    "repbn": 3,
    "prepbn": 3.5,
    "ldfn": 4,
    "sn": 5,
}
PHASES = {"LayerNorm alone": 0.0, "in the middle": 0.5, "at the end": 1.0}


class Flattened(nn.Module):
    """nn.BatchNorm1d on tokens: all of them as one batch of vectors."""

    def __init__(self, dim):
        super().__init__()
        self.norm = nn.BatchNorm1d(dim)

    def forward(self, x):
        return self.norm(x.flatten(0, 1)).view(x.shape)


class ChannelsFirst(nn.Module):
    """A norm of torch that wants (b, c, t)."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


def torch_modules(dim, heads):
    return {
        "bn": Flattened(dim),
        "gn": ChannelsFirst(nn.GroupNorm(heads, dim)),
        "in": ChannelsFirst(nn.InstanceNorm1d(dim, affine=True)),
        "rms": nn.RMSNorm(dim, eps=1e-5),
        "ln": nn.LayerNorm(dim),
    }


def variants(name, dim, heads):
    """{label: layer} of one norm."""
    layer = create_norm(name, dim, heads=heads)
    if isinstance(layer, AnnealedNorm):
        layers = {}
        for phase, progress in PHASES.items():
            layers[f"{name}, {phase}"] = layer = create_norm(name, dim, heads=heads)
            layer.set_progress(round(100 * progress), 100)
        return layers
    layers = {name: layer}
    if hasattr(layer, "defer_statistics"):
        layers[f"{name}, deferred"] = deferred = create_norm(name, dim, heads=heads)
        deferred.defer_statistics()
    return layers


def step(layer, x, cotangent):
    torch.autograd.grad(layer(x), [x, *layer.parameters()], cotangent)


def measure(shape, names, repeats, clock):
    batch, tokens, dim, heads = SHAPES[shape]
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(batch, tokens, dim, generator=noise).requires_grad_()
    cotangent = torch.randn(batch, tokens, dim, generator=noise)
    theirs = {name: layer for name, layer in torch_modules(dim, heads).items() if name in names}
    ours = {label: layer for name in names for label, layer in variants(name, dim, heads).items()}
    layers = {"nn.LayerNorm": nn.LayerNorm(dim)} | {f"torch's {name}": layer for name, layer in theirs.items()} | ours
    calls = {label: partial(step, layer, x, cotangent) for label, layer in layers.items()}
    base = calls["nn.LayerNorm"]
    base()
    start = time.perf_counter()
    base()
    inner = max(2, min(50, int(TURN / (time.perf_counter() - start))))
    timings = time_interleaved(calls, repeats, inner, clock=clock)
    rows = []
    for label in ours:
        name = label.partition(",")[0]
        row = {"shape": shape, "norm": label, "milliseconds": 1e3 * timings[label].median}
        row["of_layer_norm"] = timings[label].ratio(timings["nn.LayerNorm"])
        if name in OF_LAYER_NORM and shape != "digits":
            row["of_layer_norm_wanted"] = OF_LAYER_NORM[name]
        if name in theirs:
            row |= {"of_torch": timings[label].ratio(timings[f"torch's {name}"]), "of_torch_wanted": OF_TORCH}
        rows.append(row)
    return rows


def told(row, key):
    if key not in row:
        return 26 * " "
    middle, low, high = row[key]
    wanted = row.get(f"{key}_wanted")
    verdict = "" if wanted is None else f"<= {wanted} " + ("" if middle <= wanted else "MISSED")
    return f"{middle:5.2f} ({low:.2f}-{high:.2f}) {verdict:14}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--norms", default="bn,gn,in,rms,ln,un,zscore,minmax,repbn,prepbn,ldfn,sn")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--processor-time", action="store_true", help="of one thread, for a machine that others use too")
    parser.add_argument("--quiet", action="store_true", help="nothing else was running on the machine")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1 if options.processor_time else options.threads)
    clock = time.process_time if options.processor_time else time.perf_counter
    facts = {"command": "python benchmarks/zoo.py", "quiet": options.quiet, "processor_time": options.processor_time}
    result = {"machine": describe_machine(), **facts, "repeats": options.repeats, "rows": []}
    print(result["machine"])
    for shape in options.shapes.split(","):
        print(f"\n{shape}: {SHAPES[shape]}\n{'':26}times nn.LayerNorm{'':21}times torch's")
        for row in measure(shape, options.norms.split(","), options.repeats, clock):
            result["rows"].append(row)
            print(f"{row['norm']:26}{told(row, 'of_layer_norm')}  {told(row, 'of_torch')}".rstrip(), flush=True)
    if options.out:
        write_json(options.out, result)


if __name__ == "__main__":
    main()
