"""Samples that worker processes, or this one, read and augment.

A worker knows no keys: each request brings those of one micro-batch, so that starting one costs nothing for a million samples.
Every sample is read and augmented under a seed of its own, made of (seed, epoch, draw), and so is the same whoever reads it, in
whichever batch, on whichever process, and wherever an epoch was begun.
"""

import atexit
import multiprocessing
import os
import pickle
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from ..common.plugins import load_plugin, loaded_plugins
from ..common.with_parent import end_with_parent
from .sampling import Part, uniform


class Request(NamedTuple):
    """A micro-batch: the keys to read, and the draws that seed its augmentation.

    Numbers, not a tensor: a thread sends requests to workers, and it would move a tensor's memory while this one reads another
    part of it. That happened: a sample was read in the place of another.
    """

    epoch: int
    draws: list[int]
    keys: list[Any]


class Answer(NamedTuple):
    """The samples that could be read, joined, or None if there are none; (m,) their places in the request; messages about the
    others."""

    samples: Any
    kept: Tensor
    broken: list[str]


class Reader(Dataset[Answer]):
    """Answers requests, here or in a worker.

    Args:
        read: key -> raw sample; a ValueError says which sample cannot be read. It finds the generators as `transform` will,
            so that it can see ahead which part of a sample is wanted.
        transform: raw sample -> sample. May draw from the global generators of Python, numpy and torch.
        join: samples -> all of them as one, a tensor (m, ...) say.
        seed: of the augmentation.
    """

    def __init__(
        self, read: Callable[[Any], Any], transform: Callable[[Any], Any], join: Callable[[list[Any]], Any], seed: int
    ) -> None:
        self.read, self.transform, self.join, self.seed = read, transform, join, seed

    def __getitem__(self, request: Request) -> Answer:
        samples, kept, broken = [], [], []
        seeds = (uniform(self.seed, request.epoch, torch.tensor(request.draws), 1)[:, 0] * 2**53).long().tolist()
        with _own_randomness():
            for place, (seed, key) in enumerate(zip(seeds, request.keys, strict=True)):
                _seed_everything(seed)
                try:
                    raw = self.read(key)
                except ValueError as error:
                    broken.append(str(error))
                    continue
                _seed_everything(seed)  # again: reading may have drawn what the transform is going to draw
                samples.append(self.transform(raw))
                kept.append(place)
        return Answer(self.join(samples) if samples else None, torch.tensor(kept, dtype=torch.int64), broken)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travels as bytes, beside the user's own files: a worker has to run those before it can know their classes."""
        content = ForkingPickler.dumps((self.read, self.transform, self.join, self.seed))
        return _arrived, (loaded_plugins(), bytes(content))


def _arrived(plugins: list[Path], content: bytes) -> Reader:
    for file in plugins:
        load_plugin(file)
    return Reader(*pickle.loads(content))


class Readers:
    """Worker processes with a reader each, or without workers this process.

    Workers start with the first epoch, wait between epochs, and end with this object. They come from a fork server, or where
    there is none are spawned, never forked from this process: by then torch has threads, and a fork may inherit their locks.
    As always with these, a script that trains needs `if __name__ == "__main__":`.
    """

    def __init__(self, reader: Reader, keys: Sequence[Any], workers: int, *, pin_memory: bool = False) -> None:
        self.reader, self.requests, self.turn = reader, _Requests(keys), 0
        self.workers = _start_workers(reader, self.requests, workers, pin_memory) if workers else None

    def answers(self, epoch: int, parts: list[Part]) -> Iterator[Answer]:
        """One for each micro-batch, in order. One epoch at a time: a new one ends the one before."""
        self.turn = turn = self.turn + 1
        self.requests.epoch, self.requests.parts = epoch, parts
        for answer in self.workers if self.workers is not None else map(self.reader.__getitem__, self.requests):
            yield answer
            if turn != self.turn:
                raise RuntimeError("this epoch was ended by a later call of epoch(); use one loader for each at a time")


class _Requests(Sampler[Request]):
    """The work of an epoch. Workers outlive epochs, so each epoch puts its own in here."""

    epoch: int
    parts: list[Part]

    def __init__(self, keys: Sequence[Any]) -> None:
        self.keys = keys

    def __iter__(self) -> Iterator[Request]:
        for part in self.parts:
            draws = part.draws.tolist()
            yield Request(self.epoch, draws, [self.keys[draw % len(self.keys)] for draw in draws])


def start_server() -> None:
    """Start the process that workers are forked from, deaf to Ctrl-C like all that come from it.

    A terminal sends Ctrl-C to all processes, and only the first is to act: it ends the others, which would print tracebacks.
    """
    resource_tracker.ensure_running()  # the server would start it, and that ends the blocking
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    atexit.register(_end_server)


def _end_server() -> None:
    """Else a server that is still importing would fork workers afterwards, for nobody."""
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _start_workers(reader: Reader, requests: _Requests, workers: int, pin_memory: bool) -> DataLoader[Answer]:
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if hasattr(context, "set_forkserver_preload"):
        # The server imports torch and timm once, and workers find them there.
        context.set_forkserver_preload([f"{__package__}.file_loader"])
        start_server()
    return DataLoader(
        reader,
        batch_size=None,
        sampler=requests,
        num_workers=workers,
        collate_fn=_unchanged,
        worker_init_fn=end_with_parent,
        persistent_workers=True,
        multiprocessing_context=context,
        pin_memory=pin_memory,
        generator=torch.Generator(),  # else every epoch takes a number from torch's global generator
    )


def _unchanged(answer: Any) -> Any:
    return answer


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
