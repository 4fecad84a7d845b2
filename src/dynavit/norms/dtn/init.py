"""Positions at which the heads of DTN look before training: Eqn 7 of the paper, for every number of heads."""

import math

import torch
from torch import Tensor


def local_position(heads: int, ndim: int = 2, offsets: str = "centred") -> Tensor:
    """Eqn 7: `position` (heads, 1 + ndim) with row h = [-1, 2 D_1, ...]: a Gaussian around the h-th offset of a small window.

    >>> local_position(9)[:3]
    tensor([[-1., -2., -2.],
            [-1., -2.,  0.],
            [-1., -2.,  2.]])
    """
    return torch.tensor([[-1.0, *(2 * step for step in offset)] for offset in head_offsets(heads, ndim, offsets)])


def head_offsets(heads: int, ndim: int = 2, offsets: str = "centred") -> list[tuple[float, ...]]:
    """The offset (dx, dy) or (d,) around which each head starts.

    In 2-D the window is the smallest square with at least `heads` places. If it has more, the places nearest to the token
    are taken (ties: first in order), so H = 5 is a plus sign and H = 12 a 4 x 4 square without its corners.
    A window of even side has no middle: "centred" places it around the token, at half-integer offsets, where each head has
    four (1-D: two) equal largest weights, as in the released code; "integer" moves it by half a step towards the top left, so
    that each head has one largest weight, as in the paper's Fig. 7. Odd sides are the same either way.

    >>> head_offsets(4)
    [(-0.5, -0.5), (-0.5, 0.5), (0.5, -0.5), (0.5, 0.5)]
    >>> head_offsets(4, offsets="integer")
    [(-1.0, -1.0), (-1.0, 0.0), (0.0, -1.0), (0.0, 0.0)]
    >>> head_offsets(3, ndim=1)
    [(-1.0,), (0.0,), (1.0,)]
    """
    side = heads if ndim == 1 else math.isqrt(heads - 1) + 1
    middle = (side - 1) / 2
    steps = [at - (middle if offsets == "centred" else math.ceil(middle)) for at in range(side)]
    if ndim == 1:
        return [(float(step),) for step in steps]
    window = [(float(first), float(second)) for first in steps for second in steps]
    nearest = sorted(range(len(window)), key=lambda place: (math.hypot(*window[place]), place))[:heads]
    return [window[place] for place in sorted(nearest)]
