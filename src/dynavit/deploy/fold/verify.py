"""Whether a folded model still computes what its source does.

Both are compared with a float64 run of the source: float32 rounds differently in two models that are equal on paper, so the
source's own rounding error is the measure of what is allowed. A class can change only where two were closer than twice the
error, so an error within the limit needs no second test of classes; how many changed is reported.
"""

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ...convert.trace import tensors_in

LEAST_LIMIT, FACTOR = 1e-5, 10.0


@dataclass(frozen=True)
class FoldError:
    """Largest differences of an output from the float64 run, relative to its largest value there."""

    error: float
    own_error: float
    changed: int  # images with another class

    @property
    def limit(self) -> float:
        return max(LEAST_LIMIT, FACTOR * self.own_error)

    def check(self) -> None:
        if not self.error <= self.limit:  # NaN too
            raise ValueError(
                f"the folded model differs from its source by {self.error:.1e} of an output's largest value; "
                f"{self.limit:.1e} is allowed (the source's own rounding error is {self.own_error:.1e}). Leave it unfolded"
            )


@torch.no_grad()
def verify_fold(original: nn.Module, folded: nn.Module, images: Tensor) -> FoldError:
    """Compare on these images or token numbers (b, ...); raises if the folded model is not the same function.

    Outputs may be nested. Each has its own limit; returned is the largest error, with how many classes changed in all.
    """
    if original.training or folded.training:
        raise ValueError("verify_fold compares models in evaluation mode: call .eval() first")
    expected = tensors_in(copy.deepcopy(original).double()(images.double() if images.is_floating_point() else images))
    before, after = (tensors_in(model(images)) for model in (original, folded))
    if [x.shape for x in after] != [x.shape for x in expected]:
        raise ValueError(
            f"the folded model returns {[tuple(x.shape) for x in after]}, its source {[tuple(x.shape) for x in expected]}"
        )
    measured = [_compare(x, y, z) for x, y, z in zip(expected, after, before, strict=True) if x.numel()]
    for each in measured:
        each.check()
    worst = max(measured, key=lambda each: each.error, default=FoldError(0.0, 0.0, 0))
    return replace(worst, changed=sum(each.changed for each in measured))


def _compare(expected: Tensor, after: Tensor, before: Tensor) -> FoldError:
    largest = float(expected.abs().max()) or 1.0
    error, own_error = (float((x.double() - expected).abs().max()) / largest for x in (after, before))
    changed = int((expected.argmax(1) != after.argmax(1)).sum()) if expected.dim() == 2 else 0
    return FoldError(error, own_error, changed)
