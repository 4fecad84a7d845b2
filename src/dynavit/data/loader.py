"""The loader that fits a split."""

from typing import TYPE_CHECKING, Any

import torch

from .config import AugmentConfig, DataConfig
from .dataset import DataSet, MemorySplit
from .memory_loader import MemoryLoader

if TYPE_CHECKING:
    from .file_loader import FileLoader


def make_loader(
    dataset: DataSet,
    split: str,
    *,
    train: bool,
    batch_size: int,
    seed: int = 0,
    augment: AugmentConfig | None = None,
    config: DataConfig | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    rank: int = 0,
    world: int = 1,
    accumulate: int = 1,
) -> "MemoryLoader | FileLoader":
    """Batches of a split, see `engine.contract.Loader`: augmented and in random order if `train`, otherwise each sample once
    and in order."""
    if split not in dataset.splits:
        raise ValueError(f"{dataset.name} has no split {split!r}; it has {', '.join(dataset.splits)}")
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: a batch has at least one sample")
    chosen, augment, config = dataset.splits[split], augment or AugmentConfig(), config or DataConfig()
    _check(augment)
    shared: dict[str, Any] = {"train": train, "batch_size": batch_size, "seed": seed, "augment": augment, "device": device}
    shared |= {"dtype": dtype, "rank": rank, "world": world, "accumulate": accumulate}
    if isinstance(chosen, MemorySplit):
        return MemoryLoader(chosen, dataset, **shared)
    from .file_loader import FileLoader  # brings timm and torchvision, which sets in memory do without

    return FileLoader(chosen, dataset, config=config, **shared)


def _check(augment: AugmentConfig) -> None:
    if not 0 <= augment.padding <= 1:
        raise ValueError(f"augment.padding={augment.padding}: a fraction of the side, from 0 to 1")
    if not 0 <= augment.erase <= 1:
        raise ValueError(f"augment.erase={augment.erase}: a probability, from 0 to 1")
    if augment.repeats < 1:
        raise ValueError(f"augment.repeats={augment.repeats}: each image that takes part is visited at least once")
