"""Size of a model before anything is trained: parameters, tokens, arithmetic, and the memory that a training step takes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from ..models.fit_image import grids
from .flops import count_macs
from .memory import saved_bytes

BYTES_PER_PARAMETER = 16  # the weight, its gradient and AdamW's two averages, in float32


@dataclass(frozen=True)
class Size:
    """Numbers of one model for one sample.

    Attributes:
        grids: (rows, cols) of its tokens, one for each exit of a cascade; empty where that is not known.
        gmacs: of a forward pass; None where no sample was at hand.
        kept_bytes: what a training step keeps of each sample until its gradient is known; None where that was not asked for.
    """

    parameters: int
    grids: tuple[tuple[int, int], ...]
    gmacs: float | None = None
    kept_bytes: int | None = None

    def step_bytes(self, samples: int) -> int | None:
        """Memory of a training step, about: weights, their gradients and averages, and what is kept of the samples."""
        return None if self.kept_bytes is None else BYTES_PER_PARAMETER * self.parameters + samples * self.kept_bytes


def measure_size(model: nn.Module, sample: Tensor | None, *, training: bool = False) -> Size:
    """The size of a model for a sample (1, ...), which is run once, and for `training` a second time with gradients in mind.

    Both in evaluation mode, so that no statistics move; what dropout would keep is not counted.
    """
    parameters, found = sum(parameter.numel() for parameter in model.parameters()), tuple(grids(model))
    if sample is None:
        return Size(parameters, found)
    like = next(model.parameters(), sample)
    sample = sample.to(like.device, like.dtype)
    with _evaluating(model):
        gmacs = count_macs(model, sample) / 1e9
        kept = saved_bytes(lambda: model(sample), model) if training else None
    return Size(parameters, found, gmacs, kept)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
