"""Batches of images that are read from files, or by whatever keeps them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from PIL.Image import Image

from ..common.batch import Batch
from ..common.data import LoaderOptions
from .config import AugmentConfig, DataConfig
from .crop import RandomCrop
from .dataset import DataSet, FileSplit, MapSplit
from .mixing import step_mixer
from .read_image import read_image
from .readers import Answer, Reader, Readers
from .sampling import Part, epoch_steps, steps_in
from .transforms import Transform, eval_transform, train_transform


class FileLoader:
    """Batches of a split, see `common.data.Loader`.

    An image that cannot be read is left out of its batch and named in `Batch.broken`; with `strict` that is an error. The
    others keep their weight in the step: `step_count` still counts the broken one, whichever process it belongs to.
    """

    def __init__(
        self,
        split: FileSplit | MapSplit,
        dataset: DataSet,
        how: LoaderOptions,
        transform: Callable[[Image], Any] | None = None,
        join: Callable[[list[Any]], Any] = torch.stack,
    ) -> None:
        """`transform` makes something else of an image than the data set's own transform, `join` a batch of them."""
        self.split, self.how = split, how
        self.augment: AugmentConfig = how.augment
        self.config: DataConfig = how.config
        self.shape = (dataset.channels, *dataset.image_size)
        self.samples = len(split)
        self.steps = steps_in(self.samples, how.batch_size)
        self.mix = step_mixer(len(dataset.classes), how)
        transform = transform or _transform(dataset, how.train, self.augment)
        read, keys = (_read_files(transform), split.paths) if isinstance(split, FileSplit) else (split.read, split.keys)
        reader = Reader(read, transform, join, how.seed)
        self.readers = Readers(reader, keys, self.config.workers, pin_memory=torch.device(how.device).type == "cuda")

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[list[Batch]]:
        """The micro-batches of each step from number `start` on. One epoch at a time: a new one ends the one before."""
        steps = list(epoch_steps(self.samples, self.how, epoch, start, self.augment.repeats))
        answers = self.readers.answers(epoch, [part for _, parts in steps for part in parts])
        for step, parts in steps:
            yield self.mix([self._batch(part, next(answers)) for part in parts], epoch, step)

    def _batch(self, part: Part, answer: Answer) -> Batch:
        broken = answer.broken if part.count else []  # the process whose sample was borrowed reports it
        if broken and self.config.strict:
            raise ValueError(f"{broken[0]} (without --strict it would be left out)")
        images, kept = answer.samples, part.draws[answer.kept]
        if images is None:  # something has to go through the model: a black image, beside any label
            images, kept = self._black(), part.draws[:1]
        index, count = kept % self.samples, min(part.count, len(answer.kept))
        batch = Batch(images, self.split.labels[index], index, count, part.step_count, broken)
        return batch.to(self.how.device, self.how.dtype)

    def _black(self) -> Any:
        return torch.zeros(1, *self.shape)


def _read_files(transform: Callable[[Image], Any]) -> Callable[[str], Image]:
    """Reads files, those for a random crop as small as it allows."""
    first = getattr(transform, "transforms", [None])[0]
    return partial(read_image, reduction=first.reduction) if isinstance(first, RandomCrop) else read_image


def _transform(dataset: DataSet, train: bool, augment: AugmentConfig) -> Transform:
    if not train:
        return eval_transform(dataset.image_size, dataset.mean, dataset.std, dataset.crop_pct, dataset.interpolation)
    fitting = replace(augment, flip=dataset.mirrored if augment.flip is None else augment.flip)
    return train_transform(dataset.image_size, fitting, dataset.mean, dataset.std, dataset.crop_pct, dataset.interpolation)
