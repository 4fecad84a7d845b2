"""Batches of any loader with their images corrupted, as the model would see them: after resizing and cropping."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ...common.batch import Batch
from ...common.data import Loader
from ..dataset import DataSet
from ..memory import normalise
from .by_name import corrupt


class CorruptedLoader:
    """The batches of a loader, see `common.data.Loader`, with corrupted images.

    Images go back to bytes, are corrupted, and are normalised again. Severity 0 does all of this but the corruption, so that
    clean and corrupted errors are measured in the same way. `numbers`, (samples,), number the samples of the loader: random
    numbers of a corruption depend on them, and on no batch or process.
    """

    def __init__(
        self,
        loader: Loader,
        dataset: DataSet,
        name: str,
        severity: int,
        *,
        numbers: Tensor,
        seed: int = 0,
        exact: bool = False,
    ) -> None:
        self.loader, self.name, self.severity = loader, name, severity
        self.numbers, self.seed, self.exact = numbers, seed, exact
        self.mean, self.std = torch.tensor(dataset.mean), torch.tensor(dataset.std)
        self.steps, self.samples = loader.steps, loader.samples

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[list[Batch]]:
        for batches in self.loader.epoch(epoch, start):
            yield [replace(batch, inputs=self._corrupted(batch)) for batch in batches]

    def _corrupted(self, batch: Batch) -> Tensor:
        mean, std = self.mean.to(batch.inputs), self.std.to(batch.inputs)
        images = as_bytes(batch.inputs, mean, std)
        if self.severity:
            index = self.numbers.to(batch.index.device)[batch.index]
            images = corrupt(images, self.name, self.severity, seed=self.seed, index=index, exact=self.exact)
        return normalise(images, mean, std)


def as_bytes(inputs: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(b, c, h, w) as they go into a model -> uint8, the inverse of `normalise` up to rounding."""
    return (255 * (inputs * std[:, None, None] + mean[:, None, None])).round().clamp(0, 255).byte()
