"""Partial sums of gradients, which the backward kernels leave for torch to add up."""

from torch import Tensor, float64

from .configuration import Plan


class Partials:
    """One place for each program, so that nothing is added by atomics and every run gives the same numbers.

    Attributes:
        of_heads: (kernels, b, groups, h, blocks, 5) of lam_mean, lam_var and the three numbers of `position`.
        of_positions: (b, h, groups, 3) of `position` through the mass; None without a mask.
        of_channels: (b, slots, 2, c) of weight and bias; the last slot is for prefix tokens. None without weight and bias.
        of_tokens: (b, tiles, 2, t) of the intra-token mean and variance.
        of_masses: (b, tiles, t) of the mass; None without a mask.
        columns: (programs, 2, numbers of a tile): what goes from one kernel to the next on grids of several strips.
    """

    def __init__(self, like: Tensor, plan: Plan, block: int, *, prefix: bool, masked: bool, affine: bool) -> None:
        b, groups, tiles, tokens = like.shape[0], plan.groups, plan.tiles(block), plan.tokens
        new, several = like.new_empty, plan.several_strips
        self.of_heads = new(2 if several else 1, b, groups, plan.heads, tiles // plan.heads, 5)
        self.of_positions = new(b, plan.heads, groups, 3) if masked else None
        self.of_channels = new(b, groups + prefix, 2, plan.channels) if affine else None
        self.of_tokens = new(b, tiles, 2, tokens)
        self.of_masses = new(b, tiles, tokens) if masked else None
        self.columns = new(b * groups * tiles, 2, plan.numbers(block)) if several else None

    def sums(self) -> tuple[Tensor, ...]:
        """Gradients of weight, bias (empty if there are none), lam_mean, lam_var and position, in float64."""
        heads = self.of_heads.sum((0, 1, 2, 4), dtype=float64)
        if self.of_positions is not None:
            heads[:, 2:] += self.of_positions.sum((0, 2), dtype=float64)
        channels = heads.new_empty(2, 0) if self.of_channels is None else self.of_channels.sum((0, 1), dtype=float64)
        return channels[0], channels[1], heads[:, 0], heads[:, 1], heads[:, 2:]
