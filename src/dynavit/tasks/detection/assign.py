"""Which thing an anchor or a proposal has to learn. MMDetection's rule, but for boxes that nothing overlaps."""

import torch
from torch import Tensor

NOTHING, IGNORED = -1, -2  # background, and neither of both


def assign(overlaps: Tensor, positive: float, negative: float, least: float = 0.0) -> Tensor:
    """Overlaps (n, things) of anchors with things -> (n,) number of the thing, NOTHING or IGNORED.

    An anchor learns the thing it overlaps most, from `positive` on, and background below `negative`. Besides, every thing
    claims all anchors that overlap it as much as its best one does, if that is at least `least` and more than 0, even where
    they overlap another one more; of several the last one gets it. (With MMDetection's "at least 0" a thing that no anchor
    overlaps would claim every anchor.)
    """
    found = torch.full((len(overlaps),), NOTHING, device=overlaps.device)
    if not overlaps.numel():
        return found
    most, thing = overlaps.max(1)
    found[most >= negative] = IGNORED
    found = torch.where(most >= positive, thing, found)
    best = overlaps.amax(0)
    claims = (overlaps == best) & (best >= least) & (best > 0)
    numbers = torch.arange(overlaps.shape[1], device=overlaps.device)
    claimed = torch.where(claims, numbers, NOTHING).amax(1)
    return torch.where(claimed >= 0, claimed, found)


def assign_usable(overlaps: Tensor, usable: Tensor, positive: float, negative: float, least: float = 0.0) -> Tensor:
    """The same among the anchors that may be used, (n,) bool; the others are IGNORED."""
    found = torch.full((len(overlaps),), IGNORED, device=overlaps.device)
    found[usable] = assign(overlaps[usable], positive, negative, least)
    return found
