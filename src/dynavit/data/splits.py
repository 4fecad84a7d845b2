"""Training images that are kept back for validation, and limits. Pure functions of labels and a seed.

Both take images from each class: a cut in proportion to its size, a limit equally many, as far as a class has them.
"""

from collections.abc import Mapping
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from .config import DataConfig
from .sampling import uniform


class Split(Protocol):
    """A split as it is needed here; the classes are in `dataset.py`."""

    @property
    def labels(self) -> Tensor: ...

    def subset(self, index: Tensor) -> Self: ...


AnySplit = TypeVar("AnySplit", bound=Split)


def arrange_splits(
    name: str, splits: Mapping[str, AnySplit], classes: list[str], config: DataConfig
) -> tuple[dict[str, AnySplit], tuple[str, ...]]:
    """Splits as they are used, and notes for the user: labels checked, validation cut from train if there is none, each
    limited. The cut comes before the limit, so that runs on few and on many images are validated alike."""
    for split_name, split in splits.items():
        check_labels(f"{name}, split {split_name}", split.labels, len(classes))
    arranged: dict[str, AnySplit] = dict(splits)
    notes: list[str] = []
    if "train" in splits:
        check_no_empty_class(f"{name}, split train", splits["train"].labels, classes)
        if "val" not in splits and config.val_fraction:
            train, val = cut_validation(splits["train"].labels, config.val_fraction, config.split_seed)
            if len(val) == 0:
                raise ValueError(
                    f"{name}: val_fraction={config.val_fraction} of the training images were to be kept for validation, but no "
                    "class has two; --loading.val_fraction 0 trains without validation"
                )
            arranged["train"], arranged["val"] = splits["train"].subset(train), splits["train"].subset(val)
            notes.append(f"validation: {len(val)} of {len(train) + len(val)} training images, split_seed={config.split_seed}")
    limits = {"train": ("training", config.limit), "val": ("validation", config.val_limit), "test": ("test", config.test_limit)}
    for split_name, (use, limit) in limits.items():
        if limit and split_name in arranged and limit < len(labels := arranged[split_name].labels):
            arranged[split_name] = arranged[split_name].subset(limited(labels, limit, config.split_seed))
            notes.append(f"{use} uses {limit} of {len(labels)} images")
    if "train" in splits:
        after = f"{name}, training images after val_fraction={config.val_fraction} and limit={config.limit}"
        check_no_empty_class(after, arranged["train"].labels, classes)
    return arranged, tuple(notes)


def cut_validation(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices for train and for validation, both ascending. Every class gives the same part, as far as whole images allow, but
    keeps at least one image in train. A part that would round to nothing is one image, if a class can spare it."""
    if not 0 <= fraction < 1:
        raise ValueError(f"val_fraction={fraction}: the part of train kept for validation is at least 0 and less than 1")
    order, rank, size = _ranks(labels, seed)
    # A random offset for each class, so that many small classes together give their part, though each of them rounds.
    offset = uniform(seed, 1, torch.arange(len(size)), 1)[:, 0]
    share = (rank + offset[labels]) / size[labels]
    order = order[(rank < size[labels] - 1)[order]]
    wanted = max(round(fraction * len(labels)), int(fraction > 0))
    front = order[share[order].argsort(stable=True)][:wanted]
    held = torch.zeros(len(labels), dtype=torch.bool).index_fill_(0, front, True)
    return (~held).nonzero()[:, 0], held.nonzero()[:, 0]


def limited(labels: Tensor, limit: int, seed: int) -> Tensor:
    """Ascending indices of `limit` images, equally many of each class as long as it has some left."""
    if limit < 1:
        raise ValueError(f"limit={limit}: a limit is a number of images; 0 uses all")
    order, rank, _ = _ranks(labels, seed)
    return order[rank[order].argsort(stable=True)][:limit].sort().values


def check_labels(where: str, labels: Tensor, classes: int) -> None:
    if len(labels) == 0:
        raise ValueError(f"{where}: there are no images")
    wrong = ((labels < 0) | (labels >= classes)).nonzero()[:, 0]
    if len(wrong):
        first = int(wrong[0])
        raise ValueError(
            f"{where}: image {first} has label {int(labels[first])}, but labels are 0 to {classes - 1} "
            f"({len(wrong)} such images)"
        )


def check_no_empty_class(where: str, labels: Tensor, classes: list[str]) -> None:
    empty = (torch.bincount(labels, minlength=len(classes)) == 0).nonzero()[:, 0].tolist()
    if empty:
        named = ", ".join(f"{i} ({classes[i]})" for i in empty[:5]) + (", ..." if len(empty) > 5 else "")
        raise ValueError(f"{where}: {len(empty)} of {len(classes)} classes have no image: {named}")


def _ranks(labels: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """(n,) a random order of images, (n,) the place of each image among its class in that order, (classes,) class sizes."""
    order = uniform(seed, 0, torch.arange(len(labels)), 1)[:, 0].argsort()
    by_class = order[labels[order].argsort(stable=True)]
    size = torch.bincount(labels)
    start = size.cumsum(0) - size
    rank = torch.empty_like(labels)
    rank[by_class] = torch.arange(len(labels)) - start[labels[by_class]]
    return order, rank, size
