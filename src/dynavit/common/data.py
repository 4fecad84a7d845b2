"""A data set as tasks, the engine and the verbs see it: named splits, and loaders that give batches of them.

The engine knows nothing else about data. Images in memory, images in files, sequences with padding, views of an image and boxes
on images of any size all stand behind `Data`; the form of a batch is between the data set and the task.
"""

from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from .batch import Batch


class Loader(Protocol):
    """Batches for this process. The same (epoch, step) always gives the same samples, augmented in the same way."""

    steps: int  # in an epoch; the same on every process
    samples: int  # in an epoch, over all processes

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[list[Batch]]:
        """The micro-batches of each step from number `start` on."""
        ...


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """The batches that are wanted, and for whom.

    Attributes:
        train: samples augmented and in random order, else each sample once, in order and unchanged.
        batch_size: samples of a step, over all processes and micro-batches.
        seed: of order and augmentation.
        augment: how training samples are varied; sets of images take an `AugmentConfig`.
        config: how the set was opened, a `DataConfig`: `workers` and `strict` concern loaders too.
        device, dtype: of the inputs.
        rank, world: number of this process, and how many there are.
        accumulate: micro-batches of each process in a step.
    """

    train: bool
    batch_size: int
    seed: int = 0
    augment: Any
    config: Any
    device: torch.device | str = "cpu"
    dtype: torch.dtype = torch.float32
    rank: int = 0
    world: int = 1
    accumulate: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size}: a batch has at least one sample")


class Data(Protocol):
    """An opened data set. It need not inherit from this class: having all of it is enough.

    A data set of other things than images may also have `model`: the name of the model that is trained on it unless the user
    names another.
    """

    @property
    def name(self) -> str: ...

    @property
    def splits(self) -> Mapping[str, Sized]:
        """Samples of "train", "val" and "test", as far as there are such."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Decisions taken while opening, for the user: a split that was cut, images that are padded."""
        ...

    @property
    def task(self) -> str:
        """Name of the task that fits, unless the user names another."""
        ...

    def loader(self, split: str, how: LoaderOptions) -> Loader:
        """Batches of a split that is there."""
        ...

    def describe(self) -> dict[str, Any]:
        """Facts that a run stores, ready for JSON, so that inputs like these can be made later without the data set."""
        ...

    def prepared_as(self, facts: Mapping[str, Any], user: object) -> Self:
        """The same with inputs like those that `facts`, an earlier `describe`, is about; ValueError where that cannot be.

        `user` is named in the error: the run whose model expects such inputs.
        """
        ...

    def subset(self, split: str, index: Tensor) -> Self:
        """The same with only the samples (n,) of this split; other splits stay."""
        ...
