"""Classification by a cascade: every exit learns to classify every image, and the last one is what the cascade is judged by."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..common.batch import Batch
from ..common.metric import Metric
from ..common.right import has_answer, is_right
from .classification import Classification, ClassificationEvaluator, named_classes, training_accuracy
from .options import EarlyExitOptions


class EarlyExit(Classification):
    """Classify images by a cascade. The model maps (b, ...) to logits of each exit, each (b, classes), coarse to fine.

    `model.exits` has an entry for each. `task(batch)["loss"]` is the sum of the exits' mean cross entropies times `weights`, 1
    each unless given. "loss_exit1" and so on are the entropies themselves, "top1" is the last exit's training accuracy.
    """

    name: ClassVar[str] = "early_exit"
    Options: ClassVar[type] = EarlyExitOptions
    leaves_early: ClassVar[bool] = True

    def __init__(self, model: nn.Module, classes: int, weights: Sequence[float] | None = None) -> None:
        super().__init__(model, classes)
        if not isinstance(getattr(model, "exits", None), nn.ModuleList):
            kind = type(model).__name__
            raise ValueError(f"{self.name} trains cascades (dvt_...), and {kind} has no exits; leave --task out")
        exits = len(model.exits)  # type: ignore[arg-type]
        weights = [1.0] * exits if weights is None else weights
        if len(weights) != exits:
            raise ValueError(f"the model has {exits} exits, so its losses have as many weights; got {list(weights)}")
        if not all(weight >= 0 for weight in weights) or not any(weights):
            raise ValueError(f"weights of losses are not negative, nor all zero; got {list(weights)}")
        self.weights = tuple(weights)
        alone = (Metric(f"exit{k}_top1", f"exit {k}, top-1", percent=True) for k in range(1, exits + 1))
        top1, top5, *others = Classification.metrics
        self.metrics = (top1, top5, *alone, *others)  # those without a number are the last exit's

    @classmethod
    def build(cls, model: nn.Module, data: Any, options: EarlyExitOptions) -> "EarlyExit":
        return cls(model, len(data.classes), options.weights)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        exits = self.model(batch.inputs)
        losses = self.losses(exits, batch.targets)
        total = torch.stack([weight * loss for weight, loss in zip(self.weights, losses, strict=True)]).sum()
        alone = {f"loss_exit{k}": loss for k, loss in enumerate(losses, start=1)}
        return {"loss": total} | alone | training_accuracy(exits[-1], batch)

    def losses(self, exits: Sequence[Tensor], targets: Tensor) -> list[Tensor]:
        """What each exit minimises, before `weights`. `exits` are their logits."""
        return [F.cross_entropy(logits, targets) for logits in exits]

    def evaluator(self) -> "EarlyExitEvaluator":
        return EarlyExitEvaluator(self.model, self.classes)

    def logits(self, inputs: Tensor) -> Tensor:
        """Those of the last exit."""
        return self.model(inputs)[-1]

    @classmethod
    def report_sections(cls, run: Any) -> Sequence[Any]:
        from ..analysis.report.sections.early_exit import sections

        return [*sections(run), *super().report_sections(run)]

    @torch.no_grad()
    def answer(self, inputs: Tensor, facts: Mapping[str, Any], top: int, policy: Any = None) -> dict[str, Any]:
        """As for classification. With thresholds it stops as soon as they allow, and "exit" says where, counted from 1."""
        if policy is None:
            return super().answer(inputs, facts, top)
        policy.check_fits(len(self.model.exits))  # type: ignore[arg-type]
        cascade: Any = self.model
        state = cascade.begin(inputs)
        while True:
            logits, state = cascade.step(state)
            if policy.leaves(logits, state.exit - 1):  # the last exit always answers
                return named_classes(logits, state.exit, facts["classes"], top)


class EarlyExitEvaluator(ClassificationEvaluator):
    """The results of classification for the last exit, and the accuracy of each. All exits are run for all images."""

    @torch.no_grad()
    def update(self, batch: Batch) -> None:
        exits = [logits[: batch.count] for logits in self.model(batch.inputs)]
        targets = batch.targets[: batch.count]
        self.add("correct_at_exits", torch.stack([is_right(logits, targets).sum() for logits in exits]))
        self.add("not_finite", (~torch.stack([has_answer(logits) for logits in exits]).all(0)).sum())
        self.count(exits[-1], targets)

    def results(self) -> Iterator[tuple[str, float]]:
        """loss, top1, top5 and ece of the last exit; exit1_top1, ... of each, the last included."""
        yield from super().results()
        for k, correct in enumerate(self.totals["correct_at_exits"].tolist(), start=1):
            yield f"exit{k}_top1", correct / self.samples
