"""A quick look at features in the course of a training: k-NN and a linear probe on some training images, without augmentation.

It is a monitor: `dynavit eval --protocol` judges with all of them.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..common.batch import Batch
from ..common.data import Loader
from ..common.right import has_answer
from ..common.task import Evaluator
from .cached_probe import probe
from .nearest import accuracies, neighbour_scores

SMALL = 32  # pixels of a side that images are compared by


class Judged(Protocol):
    """A task whose model gives features, with a bank of training images."""

    model: nn.Module
    options: Any
    bank: Loader | None


class NeighbourEvaluator(Evaluator):
    """Keeps features, pixels and labels of the images it is shown, one entry for each batch."""

    def __init__(self, task: Any) -> None:
        super().__init__()
        self.task: Judged = task

    @torch.no_grad()
    def update(self, batch: Batch) -> None:
        self.add("samples", torch.tensor(batch.count, device=batch.index.device))
        self.add("queries", [_kept(self.task.model, batch)])

    def results(self) -> Iterator[tuple[str, float]]:
        """knn and linear, top-1, of features; knn_pixels of the images themselves. not_finite counts images without."""
        if not self.samples:
            raise ValueError("nothing was evaluated: no sample could be read")
        features, pixels, labels = _together(self.totals["queries"])
        bank, bank_pixels, bank_labels = self._bank()
        classes = int(max(labels.max(), bank_labels.max())) + 1
        k = self.task.options.neighbours
        missing = int((~has_answer(features)).sum() + (~has_answer(bank)).sum())
        features, bank = (x.nan_to_num(0.0, 0.0, 0.0) for x in (features, bank))
        for name, known, asked in (("knn", bank, features), ("knn_pixels", bank_pixels, pixels)):
            yield name, accuracies(neighbour_scores(known, bank_labels, asked, classes, [k])[k], labels)["top1"]
        head, _ = probe(bank, bank_labels, classes)
        yield "linear", accuracies(head(features), labels)["top1"]
        if missing:
            yield "not_finite", missing

    def details(self) -> dict[str, Any]:
        return {"bank": len(self._bank()[2]), "neighbours": self.task.options.neighbours}

    @torch.no_grad()
    def _bank(self) -> tuple[Tensor, Tensor, Tensor]:
        if self.task.bank is None:
            raise ValueError("the data set has no training images, which k-NN compares with")
        if not hasattr(self, "_stored"):
            like = next(self.task.model.parameters())
            batches = (batch.to(like.device, like.dtype) for step in self.task.bank.epoch() for batch in step)
            self._stored = _together([_kept(self.task.model, batch) for batch in batches])
        return self._stored


Kept = tuple[Tensor, Tensor, Tensor, Tensor]


def _kept(model: nn.Module, batch: Batch) -> Kept:
    """Numbers, features, pixels and labels of the samples that count, on the CPU."""
    count = batch.count
    features = model(batch.inputs)[:count].float().cpu()
    return batch.index[:count].cpu(), features, small_pixels(batch.inputs[:count]), batch.targets[:count].cpu()


def small_pixels(images: Tensor) -> Tensor:
    """(b, c, h, w) -> (b, pixels), of at most 32x32 pixels."""
    sides = tuple(min(side, SMALL) for side in images.shape[-2:])
    if sides != images.shape[-2:]:
        images = F.interpolate(images, sides, mode="area")
    return images.flatten(1).float().cpu()


def _together(entries: list[Kept]) -> tuple[Tensor, Tensor, Tensor]:
    """Features, pixels and labels in the order of the samples: processes see them in turns."""
    numbers, *parts = (torch.cat(part) for part in zip(*entries, strict=True))
    features, pixels, labels = (part[numbers.argsort()] for part in parts)
    return features, pixels, labels
