"""Classification by a cascade: every exit learns to classify every image, and the last one is what the cascade is judged by."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..common.batch import Batch
from ..common.task import Task
from .classification import ClassificationEvaluator


class EarlyExit(Task):
    """A model (b, ...) -> logits of each exit, each (b, classes), coarse to fine; `model.exits` has as many entries.

    `task(batch)["loss"]` is the sum of the exits' mean cross entropies times `weights`, 1 each unless given. "loss_exit1" and
    so on are the entropies themselves.
    """

    main_metric = "top1"  # of the last exit

    def __init__(self, model: nn.Module, classes: int, weights: Sequence[float] | None = None) -> None:
        super().__init__()
        if classes < 2:
            raise ValueError(f"classification needs at least two classes, got {classes}")
        exits = len(model.exits)  # type: ignore[arg-type]
        weights = [1.0] * exits if weights is None else weights
        if len(weights) != exits:
            raise ValueError(f"the model has {exits} exits, so its losses have as many weights; got {list(weights)}")
        if not all(weight >= 0 for weight in weights) or not any(weights):
            raise ValueError(f"weights of losses are not negative, nor all zero; got {list(weights)}")
        self.model, self.classes, self.weights = model, classes, tuple(weights)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        losses = [F.cross_entropy(logits, batch.targets) for logits in self.model(batch.inputs)]
        total = torch.stack([weight * loss for weight, loss in zip(self.weights, losses, strict=True)]).sum()
        return {"loss": total} | {f"loss_exit{k}": loss for k, loss in enumerate(losses, start=1)}

    def evaluator(self) -> "EarlyExitEvaluator":
        return EarlyExitEvaluator(self.model, self.classes)


class EarlyExitEvaluator:
    """What classification says of the last exit, and the accuracy of each. All exits are run for all images."""

    def __init__(self, model: nn.Module, classes: int) -> None:
        self.model = model
        self.last_exit = ClassificationEvaluator(nn.Identity(), classes)  # it is given logits
        self._correct: Tensor | None = None  # (exits,)

    @torch.no_grad()
    def update(self, batch: Batch) -> None:
        exits = self.model(batch.inputs)
        targets = batch.targets[: batch.count]
        correct = torch.stack([(logits[: batch.count].argmax(-1) == targets).sum() for logits in exits])
        self._correct = correct if self._correct is None else self._correct + correct
        self.last_exit.update(replace(batch, inputs=exits[-1]))

    def totals(self) -> dict[str, Tensor]:
        own = {} if self._correct is None else {"correct_at_exits": self._correct}
        return self.last_exit.totals() | own

    def set_totals(self, totals: dict[str, Tensor]) -> None:
        rest = dict(totals)
        self._correct = rest.pop("correct_at_exits", None)
        self.last_exit.set_totals(rest)

    def results(self) -> Iterator[tuple[str, float]]:
        """loss, top1, top5 and ece of the last exit; exit1_top1, ... of each, the last included."""
        yield from self.last_exit.results()
        if self._correct is not None:
            for k, correct in enumerate(self._correct.tolist(), start=1):
                yield f"exit{k}_top1", correct / self.samples

    @property
    def samples(self) -> int:
        return self.last_exit.samples

    def details(self) -> dict[str, Any]:
        """Of the last exit, see `ClassificationEvaluator.details`."""
        return self.last_exit.details()
