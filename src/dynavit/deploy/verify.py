"""Whether a folded model still computes what its source does.

Both are compared with a float64 run of the source: float32 rounds differently in two models that are equal on paper, so the
source's own rounding error is the measure of what is allowed. A class can change only where two were closer than twice the
error, so an error within the limit needs no second test of classes; how many changed is reported.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..convert.trace import tensors_in

LEAST_LIMIT, FACTOR = 1e-5, 10.0


@dataclass(frozen=True)
class FoldError:
    """Largest differences from the float64 run, relative to its largest output."""

    error: float
    own_error: float
    changed: int  # images with another class

    @property
    def limit(self) -> float:
        return max(LEAST_LIMIT, FACTOR * self.own_error)

    def check(self) -> None:
        if not self.error <= self.limit:  # NaN too
            raise ValueError(
                f"the folded model differs from its source by {self.error:.1e} of the largest output; {self.limit:.1e} is "
                f"allowed (the source's own rounding error is {self.own_error:.1e}). Leave it unfolded"
            )


@torch.no_grad()
def verify_fold(original: nn.Module, folded: nn.Module, images: Tensor) -> FoldError:
    """Compare on these images (b, ...); raises if the folded model is not the same function. Outputs may be nested."""
    if original.training or folded.training:
        raise ValueError("verify_fold compares models in evaluation mode: call .eval() first")
    expected = tensors_in(copy.deepcopy(original).double()(images.double()))
    before, after = (tensors_in(model(images)) for model in (original, folded))
    if [x.shape for x in after] != [x.shape for x in expected]:
        raise ValueError(
            f"the folded model returns {[tuple(x.shape) for x in after]}, its source {[tuple(x.shape) for x in expected]}"
        )
    largest = max((float(x.abs().max()) for x in expected if x.numel()), default=0.0) or 1.0

    def difference(outputs: list[Tensor]) -> float:
        gaps = [(y.double() - x).abs().max() for x, y in zip(expected, outputs, strict=True) if x.numel()]
        return float(torch.stack(gaps).max()) / largest if gaps else 0.0

    changed = sum(int((x.argmax(1) != y.argmax(1)).sum()) for x, y in zip(expected, after, strict=True) if x.dim() == 2)
    result = FoldError(difference(after), difference(before), changed)
    result.check()
    return result
