"""Ways to compute DTN, side by side in one run: forward + backward relative to nn.LayerNorm.

    python benchmarks/dtn_ways.py [A B C ...]

Prints one line per shape and way. All ways give the same numbers (checked first); the depthwise convolution does only the two
passes over x and x^2 that the others contain, so it is a lower bound.
"""

import sys
from unittest.mock import patch

import torch
from torch import nn

from dynavit.bench.machine import describe_machine
from dynavit.bench.norms import SHAPES, random_tokens
from dynavit.bench.timing import time_interleaved
from dynavit.norms import DynamicTokenNorm


class Depthwise(nn.Module):
    """Only P x and P x^2, as depthwise convolutions in channels-last (rows not renormalised at the border)."""

    def __init__(self, dim, heads, grid, position):
        super().__init__()
        self.grid = grid
        rows, cols = grid
        weights = []
        for n, slope in ((rows, position[:, 2]), (cols, position[:, 1])):
            offset = torch.arange(-(n - 1), n, dtype=torch.float32)
            scores = position[:, :1] * offset**2 + slope[:, None] * offset
            weights.append(scores.softmax(-1).repeat_interleave(dim // heads, 0))
        self.vertical = nn.Parameter(weights[0][:, None, :, None])
        self.horizontal = nn.Parameter(weights[1][:, None, None, :])

    def forward(self, x):
        (rows, cols), c = self.grid, x.shape[-1]
        image = x.unflatten(1, self.grid).permute(0, 3, 1, 2)
        both = torch.cat([image, image.square()])
        both = nn.functional.conv2d(both, self.vertical, padding=(rows - 1, 0), groups=c)
        both = nn.functional.conv2d(both, self.horizontal, padding=(0, cols - 1), groups=c)
        return both.permute(0, 2, 3, 1).flatten(1, 2)


def main(names):
    print(describe_machine())
    for name in names:
        shape = SHAPES[name]
        x = random_tokens(shape)
        layer = DynamicTokenNorm(shape.dim, heads=shape.heads, ndim=len(shape.grid))
        plain = DynamicTokenNorm(shape.dim, heads=shape.heads, ndim=len(shape.grid), backend="torch")
        compiled = torch.compile(plain)
        reference = nn.LayerNorm(shape.dim)

        def recomputed(x, layer=layer):
            with patch("dynavit.norms.dtn.native.build.native_kernel_available", lambda: False):
                return layer(x)

        ways = {
            "nn.LayerNorm": (reference, reference),
            "C kernel": (layer, layer),
            "torch, recomputing backward": (recomputed, layer),
            "torch, plain autograd": (plain, plain),
            "torch.compile of the latter": (compiled, plain),
        }
        for label, (call, _) in list(ways.items())[2:]:
            torch.testing.assert_close(call(x), layer(x), rtol=1e-4, atol=1e-4, msg=label)
        if len(shape.grid) == 2:
            depthwise = Depthwise(shape.dim, shape.heads, shape.grid, layer.position.detach())
            ways["depthwise convolutions, the two passes only"] = (depthwise, depthwise)

        def step(call, module, x=x):
            y = call(x)
            torch.autograd.grad(y, [x, *module.parameters()], torch.ones_like(y))

        timings = time_interleaved({label: lambda w=way: step(*w) for label, way in ways.items()}, repeats=12)
        for label, timing in timings.items():
            middle, low, high = timing.ratio(timings["nn.LayerNorm"])
            print(f"{name}  {label:45s} {1e3 * timing.median:8.2f} ms  {middle:6.1f}x  ({low:.1f}-{high:.1f})", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or ["A", "B", "C", "D"])
