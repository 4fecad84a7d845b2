"""Batches of a data set in memory: bytes live on the device, and a whole batch is augmented at once.

Every sample has random numbers of its own, from (seed, epoch, draw), so neither the batch size nor the number of processes nor
the device changes what is done to it.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ..common.batch import Batch
from .config import AugmentConfig
from .dataset import DataSet, MemorySplit
from .memory import canvas_size, erase, normalise, pad, place, resize
from .mixing import Mixer
from .sampling import Part, epoch_draws, step_parts, steps_in, uniform

_NUMBERS = 8  # for each draw: down, right, mirror, and five for erasing


class MemoryLoader:
    """Batches for this process, see `engine.contract.Loader`.

    Without `train` samples come in order, once each, and unchanged but for size and normalisation.
    """

    def __init__(
        self,
        split: MemorySplit,
        dataset: DataSet,
        *,
        train: bool,
        batch_size: int,
        seed: int,
        augment: AugmentConfig,
        device: torch.device | str,
        dtype: torch.dtype = torch.float32,
        rank: int = 0,
        world: int = 1,
        accumulate: int = 1,
    ) -> None:
        if train and augment.recipe == "deit":
            raise ValueError(f"augment.recipe=deit is for image files, {dataset.name} lives in memory; use light or none")
        self.images, self.labels = split.images.to(device), split.labels.to(device)
        self.mean, self.std = (torch.tensor(values, dtype=dtype, device=device) for values in (dataset.mean, dataset.std))
        self.size = dataset.image_size
        self.canvas = canvas_size((split.images.shape[-2], split.images.shape[-1]), self.size)
        self.train, self.batch_size, self.seed, self.augment = train, batch_size, seed, augment
        self.rank, self.world, self.accumulate = rank, world, accumulate
        self.samples = len(split)
        self.steps = steps_in(self.samples, batch_size)
        self.moves = train and augment.recipe != "none"
        self.flip = dataset.mirrored if augment.flip is None else augment.flip
        self.mixer = Mixer(len(dataset.classes), augment, seed) if train and Mixer.wanted(augment) else None

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[list[Batch]]:
        """The micro-batches of each step from number `start` on."""
        repeats = self.augment.repeats
        draws = epoch_draws(self.samples, self.seed, epoch, repeats) if self.train else torch.arange(self.samples)
        for step in range(start, self.steps):
            parts = step_parts(draws, self.batch_size, step, self.rank, self.world, self.accumulate)
            yield [self._batch(part, epoch, step, number) for number, part in enumerate(parts)]

    def _batch(self, part: Part, epoch: int, step: int, number: int) -> Batch:
        draws = part.draws.to(self.images.device)
        index = draws % self.samples
        batch = Batch(self._inputs(index, draws, epoch), self.labels[index], index, part.count, part.step_count)
        return self.mixer(batch, epoch, step, self.rank * self.accumulate + number) if self.mixer else batch

    def _inputs(self, index: Tensor, draws: Tensor, epoch: int) -> Tensor:
        images = self.images.index_select(0, index)  # copies whole images; [index] goes pixel by pixel
        numbers = uniform(self.seed, epoch, draws, _NUMBERS) if self.train else None
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
