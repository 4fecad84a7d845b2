"""A run that is open: its model on the device, its task, and data to ask it about."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..common.data import Data, Loader, LoaderOptions
from ..common.task import Task
from ..data.config import AugmentConfig, DataConfig
from ..data.dataset import DataSet
from ..engine.processes import Processes
from .config import TrainConfig
from .model_files import ModelCard
from .subject import Subject


@dataclass(frozen=True)
class Opened:
    """`data` is prepared as the model knows it; `model`, which is also the task's, stands on the device in evaluation mode.

    `source` tells which weights it has: {"run", "checkpoint", "weights", "step", "sha256" of their file}.
    """

    subject: Subject
    model: nn.Module
    task: Task
    card: ModelCard
    source: dict[str, Any]
    config: TrainConfig
    data: Data
    loading: DataConfig
    processes: Processes

    @property
    def path(self) -> Path:
        return self.subject.run

    @property
    def final_split(self) -> str:
        return final_split(self.data)

    @property
    def images(self) -> DataSet:
        """The data, where they are images of one size with classes; ValueError where they are not."""
        if not isinstance(self.data, DataSet):
            raise ValueError(f"this is for images of one size with one class each, and {self.data.name} holds others")
        return self.data

    @property
    def is_own_data(self) -> bool:
        """Whether these are the data the run was trained on, where they were."""
        subject = self.subject
        return self.data.name == self.card.data["name"] and subject.data_dir in (None, self.config.data_dir)

    def loader(self, split: str, batch_size: int, *, alone: bool = False) -> Loader:
        """The samples of a split in order, never augmented, shared among the processes unless `alone`.

        For a few samples that every process wants, `alone` also does without reading processes.
        """
        self._check_split(split)
        processes = self.processes
        how = LoaderOptions(
            train=False,
            batch_size=batch_size,
            augment=AugmentConfig(),
            config=replace(self.loading, workers=0) if alone else self.loading,
            device=processes.device,
            dtype=processes.dtype,
            rank=0 if alone else processes.rank,
            world=1 if alone else processes.world,
        )
        return self.task.loader(self.data, split, how)

    def limited(self, split: str, limit: int | None) -> "tuple[Opened, Tensor]":
        """With `limit` samples of the split, evenly from its beginning to its end, and the numbers they had in it."""
        self._check_split(split)
        count = len(self.data.splits[split])
        kept = min(limit or count, count)
        numbers = torch.arange(kept) * count // kept
        return replace(self, data=self.data.subset(split, numbers)) if limit else self, numbers

    def _check_split(self, split: str) -> None:
        if split not in self.data.splits:
            raise ValueError(f"{self.data.name} has no split {split!r}; it has {', '.join(self.data.splits)}")


def final_split(data: Data) -> str:
    """The split that a model is judged on in the end."""
    return "test" if "test" in data.splits else "val"
