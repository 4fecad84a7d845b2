"""The T2T-ViT-12 cascade beside a straightforward version of the released path, side by side in one run.

    python benchmarks/cascade.py [--batches 8 1] [--repeats 15] [--processor-time] [--out result.json]

The released path up-samples by nearest neighbours x2 and adaptive pooling, forms and keeps all attention logits, and always
runs every exit. Both have the same weights and give the same logits (checked first). "Reuse-free" is our cascade without reuse.
"""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import dynavit
from dynavit.bench.machine import describe_machine
from dynavit.bench.timing import time_interleaved


def enlarge(image: Tensor, grid: tuple[int, int]) -> Tensor:
    """(b, c, rows, cols) -> (b, c, *grid)."""
    return F.adaptive_avg_pool2d(F.interpolate(image, scale_factor=2, mode="nearest"), grid)


def enlarge_keys(relations: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """(b, c, queries, 1 + old keys) -> (b, c, queries, 1 + new keys)."""
    b, c, queries, _ = relations.shape
    patches = relations[..., 1:].reshape(b * c, queries, *old)
    return torch.cat([relations[..., :1], enlarge(patches, new).reshape(b, c, queries, -1)], -1)


def released_tokens(tokenizer, images):
    """T2T with performers, as their formula says."""
    x = images
    for at, (kernel, stride, padding) in enumerate(tokenizer.splits, 1):
        tokens = F.unfold(x, kernel, stride=stride, padding=padding).transpose(1, 2)
        if at == len(tokenizer.splits):
            return tokenizer.project(tokens)
        layer = tokenizer.get_submodule(f"attention{at}")
        k, q, v = layer.kqv(layer.norm1(tokens)).chunk(3, -1)
        q, k = ((z @ layer.w.T - z.square().sum(-1, keepdim=True) / 2).exp() / len(layer.w) ** 0.5 for z in (q, k))
        weights = torch.einsum("btm,bm->bt", q, k.sum(1))[..., None] + 1e-8
        x = v + layer.proj(torch.einsum("btm,bcm->btc", q, torch.einsum("btc,btm->bcm", v, k)) / weights)
        x = (x + layer.mlp(layer.norm2(x))).transpose(1, 2).unflatten(2, tokenizer.grids(tuple(images.shape[2:]))[at - 1])
    raise AssertionError("there is a last split")


def released_exit(exit, before, images, features, relations):
    """One exit as released: logits, features, and the attention logits of all blocks."""
    x, grid = released_tokens(exit.tokenizer, images), exit.grid
    x = torch.cat([exit.cls_token.expand(len(x), -1, -1), x], 1) + exit.pos_embed
    biases = [0.0] * len(exit.blocks)
    if exit.relation_reuse is not None:
        mixed = exit.relation_reuse.reduce(F.gelu(exit.relation_reuse.expand(torch.cat(relations, 1))))
        mixed = enlarge_keys(mixed, before.grid, grid).transpose(2, 3)
        biases = enlarge_keys(mixed, before.grid, grid).transpose(2, 3).chunk(len(exit.blocks), 1)
    kept = []
    for block, bias in zip(exit.blocks, biases, strict=True):
        q, k, v = block.attn.qkv(block.norm1(x)).unflatten(-1, (3, block.attn.heads, -1)).permute(2, 0, 3, 1, 4)
        logits = q @ k.transpose(-2, -1) * block.attn.scale + bias
        kept.append(logits)
        x = x + block.attn.proj((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))
        h = x
        if block.feature_reuse is not None:
            few = block.feature_reuse.mlp(block.feature_reuse.norm(features))[:, 1:].transpose(1, 2).unflatten(2, before.grid)
            few = enlarge(few, grid).flatten(2).transpose(1, 2)
            h = torch.cat([x, torch.cat([few.new_zeros(len(few), 1, few.shape[2]), few], 1)], 2)
        x = x + block.mlp(block.norm2(h))
    return exit.head(exit.norm(x)[:, 0]), x, kept


def released_path(cascade, images, exits=3):
    features = relations = before = None
    found = []
    for exit in cascade.exits[:exits]:
        logits, features, relations = released_exit(exit, before, images, features, relations)
        found.append(logits)
        before = exit
    return found


def measure(batch, repeats, clock):
    torch.manual_seed(0)
    cascade = dynavit.create_model("dvt_t2t_vit_12").eval()
    free = dynavit.create_model("dvt_t2t_vit_12", feature_reuse=False, relation_reuse=False).eval()
    images = torch.randn(batch, 3, 224, 224)
    for ours, theirs in zip(cascade(images), released_path(cascade, images), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)

    ways = {"released path, all exits": lambda: released_path(cascade, images)}
    ways["released path, exit 1"] = lambda: released_path(cascade, images, 1)
    ways["ours, all exits"] = lambda: cascade(images)
    for name, model in (("ours", cascade), ("reuse-free", free)):
        state = model.begin(images)
        for at in range(3):
            ways[f"{name}, exit {at + 1} alone"] = lambda model=model, state=state: model.step(state)
            state = model.step(state)[1]
    timings = time_interleaved(ways, repeats, inner=1, warmup=1, clock=clock)
    pairs = {
        "released path: all exits / exit 1 (at batch 8 11 to 15, or it is not the released one)": (
            "released path, all exits",
            "released path, exit 1",
        ),
        "exit 3 with reuse / without (wanted: at most 1.3)": ("ours, exit 3 alone", "reuse-free, exit 3 alone"),
        "whole cascade / released path (wanted: at most 0.6)": ("ours, all exits", "released path, all exits"),
    }
    return {
        "batch": batch,
        "milliseconds": {name: 1e3 * timing.median for name, timing in timings.items()},
        "ratios": {text: timings[one].ratio(timings[other]) for text, (one, other) in pairs.items()},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 1])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--processor-time", action="store_true", help="of one thread, for a machine that others use too")
    parser.add_argument("--quiet", action="store_true", help="nothing else was running on the machine")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.processor_time:
        torch.set_num_threads(1)
    clock = time.process_time if options.processor_time else time.perf_counter
    result = {
        "machine": describe_machine(),
        "quiet": options.quiet,
        "processor_time": options.processor_time,
        "repeats": options.repeats,
        "rows": [],
    }
    print(result["machine"])
    with torch.no_grad():
        for batch in options.batches:
            row = measure(batch, options.repeats, clock)
            result["rows"].append(row)
            print(f"\nbatch {batch}")
            for name, milliseconds in row["milliseconds"].items():
                print(f"  {name:28s} {milliseconds:8.1f} ms")
            for text, (middle, low, high) in row["ratios"].items():
                print(f"  {middle:6.2f} ({low:.2f}-{high:.2f})  {text}")
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
