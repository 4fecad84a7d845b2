"""Batches of a data set in memory: bytes live on the device, and a whole batch is augmented at once.

Every sample has random numbers of its own, from (seed, epoch, draw), so neither the batch size nor the number of processes nor
the device changes what is done to it.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ..common.batch import Batch
from ..common.data import LoaderOptions
from .config import AugmentConfig
from .dataset import DataSet, MemorySplit
from .memory import canvas_size, erase, normalise, pad, place, resize
from .mixing import step_mixer
from .sampling import Part, epoch_steps, steps_in, uniform

_NUMBERS = 8  # for each draw: down, right, mirror, and five for erasing


class MemoryLoader:
    """Batches of a split, see `common.data.Loader`.

    Without `how.train` samples come in order, once each, and unchanged but for size and normalisation.
    """

    def __init__(self, split: MemorySplit, dataset: DataSet, how: LoaderOptions) -> None:
        self.how = how
        self.augment: AugmentConfig = how.augment
        if how.train and self.augment.recipe == "deit":
            raise ValueError(f"augment.recipe=deit is for image files, {dataset.name} lives in memory; use light or none")
        self.images, self.labels = split.images.to(how.device), split.labels.to(how.device)
        self.mean, self.std = (torch.tensor(value, dtype=how.dtype, device=how.device) for value in (dataset.mean, dataset.std))
        self.size = dataset.image_size
        self.canvas = canvas_size((split.images.shape[-2], split.images.shape[-1]), self.size)
        self.samples = len(split)
        self.steps = steps_in(self.samples, how.batch_size)
        self.moves = how.train and self.augment.recipe != "none"
        self.flip = dataset.mirrored if self.augment.flip is None else self.augment.flip
        self.mix = step_mixer(len(dataset.classes), how)

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[list[Batch]]:
        """The micro-batches of each step from number `start` on."""
        for step, parts in epoch_steps(self.samples, self.how, epoch, start, self.augment.repeats):
            yield self.mix([self._batch(part, epoch) for part in parts], epoch, step)

    def _batch(self, part: Part, epoch: int) -> Batch:
        draws = part.draws.to(self.images.device)
        index = draws % self.samples
        return Batch(self._inputs(index, draws, epoch), self.labels[index], index, part.count, part.step_count)

    def _inputs(self, index: Tensor, draws: Tensor, epoch: int) -> Tensor:
        images = self.images.index_select(0, index)  # copies whole images; [index] goes pixel by pixel
        numbers = uniform(self.how.seed, epoch, draws, _NUMBERS) if self.how.train else None
        if self.moves and numbers is not None:
            images = place(images, self.canvas, *self._moves(numbers))
        else:
            images = pad(images, self.canvas)
        images = resize(normalise(images, self.mean, self.std), self.size)
        if self.augment.erase and numbers is not None:
            images = erase(images, numbers[:, 3:], self.augment.erase)
        return images

    def _moves(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Down and right, each from -reach to reach, and whether to mirror."""
        reach = [round(self.augment.padding * side) for side in self.canvas]
        down, right = (((2 * r + 1) * numbers[:, i]).long() - r for i, r in enumerate(reach))
        return down, right, (numbers[:, 2] < 0.5) & self.flip
