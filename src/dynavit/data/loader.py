"""Batches of a data set, of whatever kind it is."""

import torch

from ..common.data import Data, Loader, LoaderOptions
from .config import AugmentConfig, DataConfig


def make_loader(
    dataset: Data,
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
) -> Loader:
    """Batches of a split: augmented and in random order if `train`, otherwise each sample once and in order."""
    if split not in dataset.splits:
        raise ValueError(f"{dataset.name} has no split {split!r}; it has {', '.join(dataset.splits)}")
    augment, config = augment or AugmentConfig(), config or DataConfig()
    how = LoaderOptions(
        train=train,
        batch_size=batch_size,
        seed=seed,
        augment=augment,
        config=config,
        device=device,
        dtype=dtype,
        rank=rank,
        world=world,
        accumulate=accumulate,
    )
    return dataset.loader(split, how)
