"""Image classification: cross entropy to train; accuracy, calibration and confusion to evaluate."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..analysis.measures.reliability import bin_sums, calibration_error, filled_bins
from ..common.answers import answer_line, best_classes
from ..common.batch import Batch
from ..common.metric import Metric
from ..common.right import about_missing, has_answer, is_among_best
from ..common.task import Evaluator, Task
from .image import ImageTask

SHOWN = 24  # images kept as examples
MOST_CLASSES = 20  # that a table on a terminal shows


class Classification(ImageTask):
    """Tell classes of images apart. The model maps (b, ...) to (b, classes).

    `task(batch)["loss"]` is the mean cross entropy over the batch; targets are class numbers or, after mixing, probabilities.
    "top1" is the share that was right, while the weights changed; mixed images have no right class, and then it is left out.
    """

    name: ClassVar[str] = "classification"
    metrics: Sequence[Metric] = (
        Metric("top1", "top-1", percent=True),
        Metric("top5", "top-5", percent=True),
        Metric("loss", "loss", better="smaller", digits=4),
        Metric("ece", "calibration error (ECE)", better="smaller", percent=True),
    )

    def __init__(self, model: nn.Module, classes: int) -> None:
        super().__init__(model)
        if classes < 2:
            raise ValueError(f"classification needs at least two classes, got {classes}")
        self.classes = classes

    @classmethod
    def build(cls, model: nn.Module, data: Any, options: Any) -> Task:
        if isinstance(getattr(model, "exits", None), nn.ModuleList):
            raise ValueError(f"{type(model).__name__} has several exits, which --task early_exit trains; leave --task out")
        return cls(model, len(data.classes))

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        logits = self.model(batch.inputs)
        return {"loss": F.cross_entropy(logits, batch.targets)} | training_accuracy(logits, batch)

    def evaluator(self) -> "ClassificationEvaluator":
        return ClassificationEvaluator(self.model, self.classes)

    @classmethod
    def error_of(cls, results: Mapping[str, float]) -> float:
        return 1 - results["top1"]

    def logits(self, inputs: Tensor) -> Tensor:
        """(b, classes) that answer."""
        return self.model(inputs)

    # ---- What a person sees

    @torch.no_grad()
    def examples(self, batch: Batch, data: Any) -> list[dict[str, Any]]:
        """The most confident mistakes, at most half of what is shown, and then images from the start."""
        from ..data.picture import data_uri

        logits = self.logits(batch.inputs)
        confidence, predicted = logits.softmax(-1).max(-1)
        answered = has_answer(logits)
        mistakes = ((predicted != batch.targets) & answered).nonzero().flatten()
        wrong: list[int] = mistakes[confidence[mistakes].argsort(descending=True)][: SHOWN // 2].tolist()
        right = [i for i in range(batch.count) if answered[i] and predicted[i] == batch.targets[i]][: SHOWN - len(wrong)]
        return [
            {
                "index": int(batch.index[i]),
                "image": data_uri(batch.inputs[i], data.mean, data.std),
                "target": int(batch.targets[i]),
                "prediction": int(predicted[i]),
                "confidence": float(confidence[i]),
            }
            for i in wrong + right
        ]

    @classmethod
    def tables(cls, result: Mapping[str, Any]) -> list[tuple[str, list[str], list[list[str]]]]:
        if len(result["classes"]) > MOST_CLASSES:
            return []
        pairs = zip(result["classes"], result["per_class"], strict=True)
        rows = [[name, "-" if share is None else f"{share:.2%}"] for name, share in pairs]
        return [("accuracy of each class", ["class", "top-1"], rows)]

    @classmethod
    def report_sections(cls, run: Any) -> Sequence[Any]:
        from ..analysis.report.sections.classification import sections

        return sections(run)

    # ---- Prediction

    @torch.no_grad()
    def answer(self, inputs: Tensor, facts: Mapping[str, Any], top: int, policy: Any = None) -> dict[str, Any]:
        """{"label", "confidence", "top": [{"label", "confidence"}, ...]}"""
        return named_classes(self.logits(inputs), None, facts["classes"], top)

    @classmethod
    def answer_text(cls, answer: Mapping[str, Any]) -> str:
        return answer_line(answer)


def training_accuracy(logits: Tensor, batch: Batch) -> dict[str, Tensor]:
    """{"top1": the share of a training batch that (b, classes) logits get right}, {} where images are mixed."""
    if batch.mixed:
        return {}
    targets = batch.targets.argmax(-1) if batch.targets.is_floating_point() else batch.targets  # smoothed ones
    return {"top1": (logits.detach().argmax(-1) == targets).float().mean()}


def named_classes(logits: Tensor, exit: int | None, classes: Sequence[str], top: int) -> dict[str, Any]:
    """(1, classes) -> the most probable classes by name."""
    return best_classes(logits.softmax(-1)[0].double().cpu().numpy(), exit, classes, top)


class ClassificationEvaluator(Evaluator):
    """Sums over samples."""

    def __init__(self, model: nn.Module, classes: int) -> None:
        super().__init__()
        self.model, self.classes = model, classes

    @torch.no_grad()
    def update(self, batch: Batch) -> None:
        # A borrowed sample is run and not counted.
        logits = self.model(batch.inputs)[: batch.count]
        self.add("not_finite", (~has_answer(logits)).sum())
        self.count(logits, batch.targets[: batch.count])

    def count(self, logits: Tensor, targets: Tensor) -> None:
        """Add what (n, classes) logits say about (n,) targets."""
        logits = logits.double()
        if logits.shape[-1] != self.classes:
            raise ValueError(f"the model gives {logits.shape[-1]} numbers for {self.classes} classes")
        self.add("samples", torch.tensor(len(targets), device=logits.device))
        self.add("of_class", torch.bincount(targets, minlength=self.classes))
        self.add("loss", F.cross_entropy(logits, targets, reduction="sum"))
        self.add("correct5", is_among_best(logits, targets, 5).sum())
        # An image without an answer is nobody's mistake: it is in no cell and in no bin.
        answered = has_answer(logits)
        logits, targets = logits[answered], targets[answered]
        confidence, predicted = logits.softmax(-1).max(-1)
        pairs = targets * self.classes + predicted
        self.add("confusion", torch.bincount(pairs, minlength=self.classes**2).reshape(self.classes, self.classes))
        self.add("bins", bin_sums(confidence, predicted == targets))

    def results(self) -> Iterator[tuple[str, float]]:
        """loss, top1, top5 as fractions, and ece: the expected calibration error with 15 bins.

        Images whose logits are not finite are wrong, make the loss NaN, and are counted as not_finite if there are any.
        """
        samples = self.samples
        if not samples:
            raise ValueError("nothing was evaluated: no sample could be read")
        confusion = self.totals["confusion"]
        yield "loss", float(self.totals["loss"]) / samples
        yield "top1", int(confusion.trace()) / samples
        yield "top5", int(self.totals["correct5"]) / samples
        yield "ece", calibration_error(self.totals["bins"])
        if missing := int(self.totals["not_finite"]):
            yield "not_finite", missing

    def notes(self) -> Iterator[str]:
        if missing := int(self.totals["not_finite"]):
            yield about_missing(missing, self.samples)

    def details(self) -> dict[str, Any]:
        """Accuracy of each class (None: no sample), the filled bins of a reliability diagram, and the confusion of classes as
        three lists, {"true", "predicted", "images"}, of the pairs that occurred: a matrix of 1,000 classes has 9 MB as JSON."""
        confusion = self.totals["confusion"]
        of_class = self.totals["of_class"]
        per_class = [int(right) / int(n) if n else None for right, n in zip(confusion.diagonal(), of_class, strict=True)]
        bins = filled_bins(self.totals["bins"])
        true, predicted = confusion.nonzero(as_tuple=True)
        pairs = {"true": true.tolist(), "predicted": predicted.tolist(), "images": confusion[true, predicted].tolist()}
        return {"per_class": per_class, "confusion": pairs, "reliability": bins}
