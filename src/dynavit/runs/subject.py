"""A trained model and a data set to ask it about: what evaluating, calibrating and looking inside begin with."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from .assemble import prepared_as
from .config import TrainConfig, from_plain
from ..data.config import DataConfig
from ..data.dataset import DataSet
from ..data.loader import make_loader
from ..data.open import open_data
from ..engine.contract import Loader
from ..engine.processes import Processes
from .directory import RunDirectory
from .model_files import ModelCard, load


@dataclass(frozen=True)
class OpenedRun:
    """`data` is prepared as the model knows images, `model` stands on the device in evaluation mode."""

    path: Path
    model: nn.Module
    card: ModelCard
    config: TrainConfig
    data: DataSet
    loading: DataConfig
    processes: Processes

    @property
    def final_split(self) -> str:
        return final_split(self.data)

    def loader(self, split: str, batch_size: int) -> Loader:
        """The images of a split in order, never augmented, shared among the processes."""
        return make_loader(
            self.data,
            split,
            train=False,
            batch_size=batch_size,
            config=self.loading,
            device=self.processes.device,
            dtype=self.processes.dtype,
            rank=self.processes.rank,
            world=self.processes.world,
        )


def open_run(
    run: Path,
    *,
    data: DataSet | None = None,
    data_name: str | None = None,
    data_dir: Path | None = None,
    loading: DataConfig | None = None,
    checkpoint: Literal["last", "best"] = "last",
    weights: Literal["model", "ema"] | None = None,
    device: str | None = None,
) -> OpenedRun:
    """A run with its own data set, or with another that has as many classes."""
    model, card = load(run, checkpoint, weights), ModelCard.read(run)
    config = from_plain(TrainConfig, RunDirectory(run).read_config())
    loading = loading or config.loading
    if data is None:
        own = data_name in (None, config.data)
        data = open_data(data_name or config.data, data_dir or (config.data_dir if own else None), loading)
    if len(data.classes) != len(card.classes):
        raise ValueError(f"{data.name} has {len(data.classes)} classes, the model of {run} tells {len(card.classes)} apart")
    data = prepared_as(data, card.preprocess, run)
    config.engine.device = device
    processes = Processes(config.engine)
    return OpenedRun(run, model.to(processes.device, processes.dtype), card, config, data, loading, processes)


def final_split(data: DataSet) -> str:
    """What a model is judged on in the end."""
    return "test" if "test" in data.splits else "val"


def limited(opened: OpenedRun, split: str, limit: int | None) -> tuple[OpenedRun, Tensor]:
    """With `limit` images of the split, evenly from its beginning to its end, and the numbers they had in it."""
    data = opened.data
    if split not in data.splits:
        raise ValueError(f"{data.name} has no split {split!r}; it has {', '.join(data.splits)}")
    whole = data.splits[split]
    kept = min(limit or len(whole), len(whole))
    numbers = torch.arange(kept) * len(whole) // kept
    return replace(opened, data=replace(data, splits={split: whole.subset(numbers)})) if limit else opened, numbers
