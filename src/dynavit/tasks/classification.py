"""Image classification: cross entropy to train, and to evaluate accuracy, calibration and who is taken for whom."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..common.batch import Batch
from ..common.task import Task

CALIBRATION_BINS = 15


class Classification(Task):
    """A model (b, ...) -> (b, classes) and the classes it tells apart.

    `task(batch)["loss"]` is the mean cross entropy over the batch; targets are class numbers or, after mixing, probabilities.
    """

    main_metric = "top1"

    def __init__(self, model: nn.Module, classes: int) -> None:
        super().__init__()
        if classes < 2:
            raise ValueError(f"classification needs at least two classes, got {classes}")
        self.model, self.classes = model, classes

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(self.model(batch.inputs), batch.targets)}

    def evaluator(self) -> "ClassificationEvaluator":
        return ClassificationEvaluator(self.model, self.classes)


class ClassificationEvaluator:
    """Sums over samples: nothing depends on how they were batched or shared among processes."""

    def __init__(self, model: nn.Module, classes: int) -> None:
        self.model, self.classes = model, classes
        self._totals: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self, batch: Batch) -> None:
        logits = self.model(batch.inputs)[: batch.count].double()  # a borrowed sample is run and not counted
        targets = batch.targets[: batch.count]
        if logits.shape[-1] != self.classes:
            raise ValueError(f"the model gives {logits.shape[-1]} numbers for {self.classes} classes")
        probabilities = logits.softmax(-1)
        confidence, predicted = probabilities.max(-1)
        correct = predicted == targets
        # Right among the five largest: fewer than five classes are strictly more probable than the target.
        rank = (logits > logits.gather(1, targets[:, None])).sum(-1)
        # Bins (0, 1/15], (1/15, 2/15], ... as in Guo et al., ICML 2017.
        bins = (confidence * CALIBRATION_BINS).ceil().long().sub(1).clamp(0, CALIBRATION_BINS - 1)
        pairs = targets * self.classes + predicted
        self._add("samples", torch.tensor(batch.count, device=logits.device))
        self._add("loss", F.cross_entropy(logits, targets, reduction="sum"))
        self._add("correct5", (rank < 5).sum())
        self._add("confusion", torch.bincount(pairs, minlength=self.classes**2).reshape(self.classes, self.classes))
        for name, weights in {"count": torch.ones_like(confidence), "confidence": confidence, "correct": correct}.items():
            self._add(f"bin_{name}", logits.new_zeros(CALIBRATION_BINS).index_add(0, bins, weights.double()))

    def _add(self, name: str, value: Tensor) -> None:
        self._totals[name] = self._totals[name] + value if name in self._totals else value

    def totals(self) -> dict[str, Tensor]:
        return self._totals

    def set_totals(self, totals: dict[str, Tensor]) -> None:
        self._totals = totals

    def results(self) -> Iterator[tuple[str, float]]:
        """loss, top1, top5 as fractions, and ece: the expected calibration error with 15 bins."""
        samples = self.samples
        if not samples:
            raise ValueError("nothing was evaluated: no sample could be read")
        confusion = self._totals["confusion"]
        yield "loss", float(self._totals["loss"]) / samples
        yield "top1", int(confusion.trace()) / samples
        yield "top5", int(self._totals["correct5"]) / samples
        gap = (self._totals["bin_confidence"] - self._totals["bin_correct"]).abs().sum()
        yield "ece", float(gap) / samples

    @property
    def samples(self) -> int:
        return int(self._totals.get("samples", 0))

    def details(self) -> dict[str, Any]:
        """What is too long for a line of metrics: accuracy of each class (None: no sample), the confusion matrix with true
        classes as rows, and the filled bins of a reliability diagram."""
        confusion = self._totals["confusion"]
        of_class = confusion.sum(1)
        per_class = [int(right) / int(n) if n else None for right, n in zip(confusion.diagonal(), of_class, strict=True)]
        bins = zip(*(self._totals[f"bin_{name}"].tolist() for name in ("count", "confidence", "correct")), strict=True)
        reliability = [
            {"samples": int(count), "confidence": confidence / count, "accuracy": correct / count}
            for count, confidence, correct in bins
            if count
        ]
        return {
            "samples": self.samples,
            "per_class": per_class,
            "confusion": confusion.tolist(),
            "reliability": reliability,
        }
