"""DTN's Triton kernels on a real GPU: are the numbers right, and what do they cost? They were written without one.

    python benchmarks/gpu_check.py [--batch 256] [--repeats 20] [--device cuda] [--no-model]

Prints Markdown to paste into an issue: the machine, errors against float64, times relative to nn.LayerNorm, and a training step
of ViT-S* relative to the same model with LN. The first call of each shape compiles its kernels, which takes seconds.
"""

import argparse
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import nn

from dynavit import create_model
from dynavit.bench.machine import describe_machine
from dynavit.bench.norms import SHAPES, Shape, random_tokens
from dynavit.bench.timing import time_interleaved
from dynavit.engine.device import best_device, usable_device
from dynavit.norms import DynamicTokenNorm
from dynavit.norms.dtn.gpu.supports import supports
from dynavit.norms.dtn.math import Operands

# Beyond the shapes of `dynavit bench norms`: what else the kernels promise. (shape, options of the layer, masked)
CHECKS = {
    "A: 14x14, C=432, H=9": (Shape(4, (14, 14), 432, 9), {}, False),
    "A, wide kernel": (Shape(4, (14, 14), 432, 9), {"init": "trunc_normal"}, False),
    "A, x + 1000": (Shape(4, (14, 14), 432, 9), {"shift": 1000.0}, False),
    "B: 8x8, C=192, H=4, class token": (Shape(8, (8, 8), 192, 4), {"num_prefix_tokens": 1}, False),
    "C: 56x56, C=64, H=1": (Shape(2, (56, 56), 64, 1), {}, False),
    "28x28, C=128, H=2, radius 3": (Shape(2, (28, 28), 128, 2), {"radius": 3}, False),
    "17x33, C=20, no affine": (Shape(3, (17, 33), 20, 1), {"affine": False}, False),
    "25x42, C=96, H=3, masked": (Shape(3, (25, 42), 96, 3), {}, True),
}
LIMIT, LEAST = 8.0, 2e-6  # errors may be so many times torch float32's own; a relative error of a gradient may always be LEAST


def gradients(norm, x, shape, mask):
    """The output and all gradients, each relative to the same random direction."""
    x = x.detach().clone().requires_grad_()
    y = norm(x, grid=shape.grid, mask=mask)
    direction = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)
    return y.detach(), *torch.autograd.grad(y, [x, *norm.parameters()], direction)


def errors(shape, options, masked, device):
    """Errors of the output and of the worst gradient, as multiples of torch float32's own, and who computed."""
    options = dict(options)
    shift, prefix = options.pop("shift", 0.0), options.get("num_prefix_tokens", 0)
    torch.manual_seed(0)
    made = DynamicTokenNorm(shape.dim, heads=shape.heads, **options)
    x = torch.randn(shape.batch, prefix + shape.grid[0] * shape.grid[1], shape.dim).to(device) + shift
    mask = rectangles(shape).to(device) if masked else None
    found = {}
    for name, backend, dtype in (
        ("exact", "torch", torch.float64),
        ("torch", "torch", torch.float32),
        ("ours", "auto", torch.float32),
    ):
        layer = DynamicTokenNorm(shape.dim, heads=shape.heads, backend=backend, **options)
        layer.load_state_dict(made.state_dict())
        found[name] = gradients(layer.to(device, dtype), x.to(dtype), shape, mask)
    exact, own, ours = found.values()
    output = float((ours[0] - exact[0]).abs().max() / (own[0] - exact[0]).abs().max())
    worst = max(
        relative(grad, true) / max(relative(plain, true), LEAST / LIMIT)
        for grad, plain, true in zip(ours[1:], own[1:], exact[1:], strict=True)
    )
    return output, worst, computed_by(layer, x, shape)


def relative(grad, true):
    return float((grad - true).norm() / true.norm())


def rectangles(shape):
    """A real rectangle at the top left of each sample, as padded images of a detector have."""
    mask = torch.zeros(shape.batch, *shape.grid, dtype=torch.bool)
    for k, patches in enumerate(mask):
        patches[: shape.grid[0] - 2 * k, : shape.grid[1] - 5 * k] = True
    return mask.flatten(1)


def computed_by(norm, x, shape):
    lam_mean, lam_var = norm.mixing_weights(x)
    operands = Operands(x, norm.weight, norm.bias, lam_mean, lam_var, norm.position)
    taken, reason = supports(operands, norm.layout(x.shape[1], shape.grid))
    return "Triton" if taken else reason


def check_numbers(device):
    print(f"\nErrors against float64, times those of plain torch in float32: at most {LIMIT:g}.\n")
    print("| case | output | worst gradient | computed by | |\n|---|---|---|---|---|")
    right = True
    for name, (shape, options, masked) in CHECKS.items():
        output, gradient, by = errors(shape, options, masked, device)
        good = output <= LIMIT and gradient <= LIMIT  # False for NaN
        right &= good
        print(f"| {name} | {output:.1f} | {gradient:.1f} | {by} | {'ok' if good else '**WRONG**'} |", flush=True)
    return right


def check_cost(device, batch, repeats):
    print(f"\nTimes nn.LayerNorm's, batch {batch} (D: {max(1, batch // 64)}), float32; medians, quartiles in brackets.\n")
    print("| shape | LN forward | DTN forward | LN with backward | DTN with backward, Eqn 7 | trunc-normal | plain torch |")
    print("|---|---|---|---|---|---|---|")
    for name, shape in SHAPES.items():
        shape = replace(shape, batch=batch if len(shape.grid) == 2 else max(1, batch // 64))
        x, options = random_tokens(shape, device), {"heads": shape.heads, "ndim": len(shape.grid)}
        layers = {
            "ln": nn.LayerNorm(shape.dim),
            "local": DynamicTokenNorm(shape.dim, init="local", **options),
            "trunc_normal": DynamicTokenNorm(shape.dim, init="trunc_normal", **options),
            "torch": DynamicTokenNorm(shape.dim, backend="torch", **options),
        }
        layers = {key: layer.to(device) for key, layer in layers.items()}
        direction = torch.randn_like(x)

        def forward(layer, x=x):
            with torch.no_grad():
                layer(x)

        def training(layer, x=x, direction=direction):
            torch.autograd.grad(layer(x), [x, *layer.parameters()], direction)

        calls = {
            way: {key: lambda do=do, layer=layer: do(layer) for key, layer in layers.items()}
            for way, do in (("f", forward), ("t", training))
        }
        f, t = (time_interleaved(calls[way], repeats, device=device) for way in "ft")
        cells = [f"{1e3 * f['ln'].median:.3f} ms", ratio(f, "local"), f"{1e3 * t['ln'].median:.3f} ms"]
        cells += [ratio(t, key) for key in ("local", "trunc_normal", "torch")]
        print(f"| {name}: {shape} | {' | '.join(cells)} |", flush=True)


def ratio(timings, key):
    middle, low, high = timings[key].ratio(timings["ln"])
    return f"{middle:.2f}× ({low:.2f}–{high:.2f})"


def check_model(device, batch, repeats, name="vit_small_star", img_size=224):
    """A training step in float32 and under bfloat16 autocast."""
    print(f"\nTraining step of {name}, batch {batch}, {img_size} px.\n\n| precision | LN | DTN |\n|---|---|---|")
    images, labels = torch.randn(batch, 3, img_size, img_size).to(device), torch.arange(batch, device=device) % 10
    for half in (False, True):
        steps = {}
        for norm in ("ln", "dtn"):
            model = create_model(name, norm, num_classes=10, img_size=img_size).to(device).train()
            optimiser = torch.optim.AdamW(model.parameters(), lr=1e-6)

            def step(model=model, optimiser=optimiser, half=half):
                with torch.autocast(device.type, torch.bfloat16, enabled=half):
                    loss = nn.functional.cross_entropy(model(images), labels)
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()

            steps[norm] = step
        timings = time_interleaved(steps, repeats, inner=1, device=device)
        print(
            f"| {'bf16' if half else 'float32'} | {1e3 * timings['ln'].median:.1f} ms | {ratio(timings, 'dtn')} |", flush=True
        )


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--device")
    parser.add_argument(
        "--model", action=argparse.BooleanOptionalAction, default=True, help="also time a training step of ViT-S*"
    )
    options = parser.parse_args(arguments)
    device = best_device() if options.device is None else usable_device(options.device)
    # LayerNorm's model is not to run in TF32 either: float32 stands for float32 in these tables.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "none"
    facts = describe_machine(device)
    print(f"{facts['device']}; torch {facts['torch']}, triton {triton}, dynavit {facts['dynavit']}, {facts['date']}")
    right = check_numbers(device)
    check_cost(device, options.batch, options.repeats)
    if options.model:
        check_model(device, max(1, options.batch // 4), options.repeats)
    print("\nAll numbers are right." if right else "\nSOME NUMBERS ARE WRONG: see the first table.")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
