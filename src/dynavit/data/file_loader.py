"""Batches of images that are read from files, by worker processes or by this one.

A worker knows no paths: each request brings the keys of one micro-batch, so that starting one costs nothing for a million
images. Every sample is read and augmented under a seed of its own, made of (seed, epoch, draw), and so is the same whoever
reads it, in whichever batch, on whichever process, and wherever an epoch was begun.
"""

import multiprocessing
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from ..common.batch import Batch
from .config import AugmentConfig, DataConfig
from .dataset import DataSet, FileSplit, MapSplit
from .mixing import Mixer
from .read_image import read_image
from .sampling import Part, epoch_draws, step_parts, steps_in, uniform
from .transforms import Transform, eval_transform, train_transform


class FileLoader:
    """Batches of a split, see `engine.contract.Loader`: augmented and in random order if `train`, otherwise each sample once
    and in order.

    An image that cannot be read is left out of its batch and named in `Batch.broken`; with `config.strict` that is an error.
    The others keep their weight in the step: `step_count` still counts the broken one, whichever process it belongs to.

    Workers start with the first epoch, wait between epochs, and end with the loader. They come from a fork server, or where
    there is none are spawned, never forked from this process: by then torch has threads, and a fork may inherit their locks.
    As always with these, a script that trains needs `if __name__ == "__main__":`.
    """

    def __init__(
        self,
        split: FileSplit | MapSplit,
        dataset: DataSet,
        *,
        train: bool,
        batch_size: int,
        seed: int,
        augment: AugmentConfig,
        config: DataConfig,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        rank: int = 0,
        world: int = 1,
        accumulate: int = 1,
    ) -> None:
        self.split, self.train, self.batch_size, self.seed, self.augment = split, train, batch_size, seed, augment
        self.strict, self.device, self.dtype = config.strict, torch.device(device), dtype
        self.rank, self.world, self.accumulate = rank, world, accumulate
        self.samples = len(split)
        self.steps = steps_in(self.samples, batch_size)
        self.mixer = Mixer(len(dataset.classes), augment, seed) if train and Mixer.wanted(augment) else None

        if train:
            fitting = replace(augment, flip=dataset.mirrored if augment.flip is None else augment.flip)
            transform = train_transform(dataset.image_size, fitting, dataset.mean, dataset.std)
        else:
            transform = eval_transform(dataset.image_size, dataset.mean, dataset.std, dataset.crop_pct)
        read, keys = (read_image, split.paths) if isinstance(split, FileSplit) else (split.read, split.keys)
        self.reader = _Reader(read, transform, seed, (dataset.channels, *dataset.image_size))
        self.requests = _Requests(keys)
        self.workers = _start_workers(self.reader, self.requests, config.workers, self.device) if config.workers else None
        self.turn = 0

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[list[Batch]]:
        """The micro-batches of each step from number `start` on. One epoch at a time: a new one ends the one before."""
        self.turn = turn = self.turn + 1
        draws = epoch_draws(self.samples, self.seed, epoch, self.augment.repeats) if self.train else torch.arange(self.samples)
        steps = [
            step_parts(draws, self.batch_size, step, self.rank, self.world, self.accumulate)
            for step in range(start, self.steps)
        ]
        answers = self._answers(epoch, [part for parts in steps for part in parts])
        for step, parts in enumerate(steps, start):
            batches = [self._batch(part, next(answers)) for part in parts]
            if self.mixer:
                first = self.rank * self.accumulate
                batches = [self.mixer(batch, epoch, step, first + i) for i, batch in enumerate(batches)]
            yield batches
            if turn != self.turn:
                raise RuntimeError("this epoch was ended by a later call of epoch(); use one loader for each at a time")

    def _answers(self, epoch: int, parts: list[Part]) -> Iterator["_Answer"]:
        self.requests.epoch, self.requests.parts = epoch, parts
        return iter(self.workers) if self.workers is not None else map(self.reader.__getitem__, self.requests)

    def _batch(self, part: Part, answer: "_Answer") -> Batch:
        broken = answer.broken if part.count else []  # whose sample was borrowed reports it
        if broken and self.strict:
            raise ValueError(f"{broken[0]} (without --strict it would be left out)")
        kept = part.draws[answer.kept] if len(answer.kept) else part.draws[:1]  # beside the black image stands any label
        index, count = kept % self.samples, min(part.count, len(answer.kept))
        batch = Batch(answer.images, self.split.labels[index], index, count, part.step_count, broken)
        return batch.to(self.device, self.dtype)


class _Request(NamedTuple):
    """A micro-batch: what to read, and the draws that seed its augmentation.

    Numbers, not a tensor: a thread sends requests to workers, and it would move a tensor's memory while this one reads another
    part of it. That happened: a sample was read in the place of another.
    """

    epoch: int
    draws: list[int]
    keys: list[Any]


class _Answer(NamedTuple):
    """(m, c, h, w) images and (m,) their places in the request; one black image if none could be read."""

    images: Tensor
    kept: Tensor
    broken: list[str]


class _Requests(Sampler[_Request]):
    """What workers are to do. They outlive an epoch, so each epoch puts its own work in here."""

    epoch: int
    parts: list[Part]

    def __init__(self, keys: Sequence[Any]) -> None:
        self.keys = keys

    def __iter__(self) -> Iterator[_Request]:
        for part in self.parts:
            draws = part.draws.tolist()
            yield _Request(self.epoch, draws, [self.keys[draw % len(self.keys)] for draw in draws])


class _Reader(Dataset[_Answer]):
    """Answers requests, here or in a worker."""

    def __init__(
        self, read: Callable[[Any], Image.Image], transform: Transform, seed: int, shape: tuple[int, int, int]
    ) -> None:
        self.read, self.transform, self.seed, self.shape = read, transform, seed, shape

    def __getitem__(self, request: _Request) -> _Answer:
        images, kept, broken = [], [], []
        seeds = (uniform(self.seed, request.epoch, torch.tensor(request.draws), 1)[:, 0] * 2**53).long().tolist()
        with _own_randomness():
            for place, (seed, key) in enumerate(zip(seeds, request.keys, strict=True)):
                try:
                    image = self.read(key)
                except ValueError as error:
                    broken.append(str(error))
                    continue
                _seed_everything(seed)
                images.append(self.transform(image))
                kept.append(place)
        stacked = torch.stack(images) if images else torch.zeros(1, *self.shape)
        return _Answer(stacked, torch.tensor(kept, dtype=torch.int64), broken)


def _start_workers(reader: _Reader, requests: _Requests, workers: int, device: torch.device) -> DataLoader[_Answer]:
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if hasattr(context, "set_forkserver_preload"):
        context.set_forkserver_preload([__name__])  # the server imports torch and timm once, workers find them there
    return DataLoader(
        reader,
        batch_size=None,
        sampler=requests,
        num_workers=workers,
        persistent_workers=True,
        multiprocessing_context=context,
        pin_memory=device.type == "cuda",
        generator=torch.Generator(),  # else every epoch takes a number from torch's global generator
    )


@contextmanager
def _own_randomness() -> Iterator[None]:
    """Leave the global generators as they were: without workers they are those of the training."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def _seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the generators of devices too
