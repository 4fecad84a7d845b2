"""ListOps: the value of an expression, one of ten digits. Accuracies come with what they mean: an interval, and a ladder.

Every prediction is stored, one digit for each row, so that two models can be compared row by row afterwards.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..analysis.statistics import wilson_interval
from ..common.answers import answer_line, best_classes
from ..common.batch import Batch
from ..common.metric import Metric
from ..common.right import about_missing, has_answer
from ..common.task import Evaluator, Task
from ..data.listops.grammar import DIGITS, OPERATORS, TOKENS, evaluate, tokenise

NO_ANSWER = "-"  # in place of a digit, where the model's numbers are not finite


class ListOps(Task):
    """Compute the value of an expression. The model maps ids (b, t) and a mask (b, t) to (b, 10)."""

    name: ClassVar[str] = "listops"
    things: ClassVar[str] = "rows"
    example_file: ClassVar[str] = "expression.txt"
    metrics: Sequence[Metric] = (
        Metric("accuracy", "accuracy", percent=True),
        Metric("loss", "loss", better="smaller", digits=4),
    )

    def __init__(self, model: nn.Module, ladder: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(model)
        self.ladder = list(ladder)

    # ---- From options to a task

    @classmethod
    def check_data(cls, data: Any) -> None:
        if getattr(data, "vocabulary", None) != TOKENS:
            raise ValueError(f"the task listops is about ListOps expressions, and {data.name} holds others; leave --task out")

    @classmethod
    def model_options(cls, data: Any, options: Any) -> dict[str, Any]:
        return {"num_classes": DIGITS, "vocab_size": len(TOKENS), "max_len": data.width}

    @classmethod
    def build(cls, model: nn.Module, data: Any, options: Any) -> "ListOps":
        room, vocabulary = getattr(model, "max_len", None), getattr(model, "vocab_size", len(TOKENS))
        if room is not None and room < data.width:
            raise ValueError(
                f"rows of {data.name} are padded to {data.width} tokens, but the model has positions for max_len={room}; leave "
                "--model_options.max_len out"
            )
        if vocabulary < len(TOKENS):
            raise ValueError(f"ListOps has {len(TOKENS)} ids, the model vocab_size={vocabulary}; leave it out")
        return cls(model, data.ladder)

    # ---- Training and evaluation

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        logits = self.logits(batch.inputs)
        right = (logits.detach().argmax(-1) == batch.targets).float().mean()
        return {"loss": F.cross_entropy(logits, batch.targets), "accuracy": right}

    def logits(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """(b, 10) that answer."""
        return self.model(inputs["ids"], inputs["mask"])

    def evaluator(self) -> "ListOpsEvaluator":
        return ListOpsEvaluator(self)

    # ---- What a person sees

    @classmethod
    def tables(cls, result: Mapping[str, Any]) -> list[tuple[str, list[str], list[list[str]]]]:
        low, high = result["interval"]
        rungs = [[rung["name"], f"{rung['accuracy']:.1%}"] for rung in result["ladder"]]
        rungs.append(["this model", f"{result['accuracy']:.1%} [{low:.1%}, {high:.1%}]"])
        roots = [[entry["root"], str(entry["samples"]), f"{entry['accuracy']:.1%}"] for entry in result["by_root"]]
        return [
            ("what readers of little reach, and this model with its 95 % interval", ["reader", "accuracy"], rungs),
            ("accuracy by the first token", ["root", "rows", "accuracy"], roots),
        ]

    @classmethod
    def report_sections(cls, run: Any) -> Sequence[Any]:
        from ..analysis.report.sections.listops import run_sections

        return run_sections(run)

    @classmethod
    def comparison_sections(cls, comparison: Any) -> Sequence[Any]:
        from ..analysis.report.sections.listops import comparison_sections

        return comparison_sections(comparison)

    # ---- Prediction

    def read_input(self, path: Path, facts: Mapping[str, Any]) -> dict[str, Tensor]:
        """A file with one expression."""
        try:
            ids = tokenise(path.read_text(encoding="utf-8"))
            evaluate(ids)  # says what is wrong with it
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        if len(ids) > facts["width"]:
            raise ValueError(f"{path}: {len(ids)} tokens, but the model reads {facts['width']}")
        row = torch.zeros(1, facts["width"], dtype=torch.int64)
        row[0, : len(ids)] = torch.tensor(ids)
        return {"ids": row, "mask": row > 0}

    @torch.no_grad()
    def answer(self, inputs: Mapping[str, Tensor], facts: Mapping[str, Any], top: int, policy: Any = None) -> dict[str, Any]:
        """{"label", "confidence", "top": [{"label", "confidence"}, ...]}"""
        chances = self.logits(inputs).softmax(-1)[0].double().cpu().numpy()
        return best_classes(chances, None, facts["classes"], top)

    @classmethod
    def answer_text(cls, answer: Mapping[str, Any]) -> str:
        return answer_line(answer)


class ListOpsEvaluator(Evaluator):
    """Keeps the answer to every row: [number of the row, its label, its first token, the predicted digit or -1]."""

    def __init__(self, task: ListOps) -> None:
        super().__init__()
        self.task = task

    @torch.no_grad()
    def update(self, batch: Batch) -> None:
        logits = self.task.logits(batch.inputs)[: batch.count].double()
        targets = batch.targets[: batch.count]
        predicted = torch.where(has_answer(logits), logits.argmax(-1), -1)
        first = batch.inputs["ids"][: batch.count, 0]
        rows = torch.stack([batch.index[: batch.count], targets, first, predicted], 1)
        self.add("rows", rows.tolist())
        self.add("samples", torch.tensor(len(targets), device=logits.device))
        self.add("loss", F.cross_entropy(logits, targets, reduction="sum"))

    def results(self) -> Iterator[tuple[str, float]]:
        """loss and accuracy; rows whose logits are not finite are wrong, and are counted as not_finite if there are any."""
        if not self.samples:
            raise ValueError("nothing was evaluated: there are no rows")
        yield "loss", float(self.totals["loss"]) / self.samples
        yield "accuracy", self._right(self._rows) / self.samples
        if missing := self._missing:
            yield "not_finite", missing

    def notes(self) -> Iterator[str]:
        if missing := self._missing:
            yield about_missing(missing, self.samples, "rows")
        if self.task.ladder:
            yield "for comparison: " + ", ".join(f"{rung['name']} {rung['accuracy']:.1%}" for rung in self.task.ladder)

    def details(self) -> dict[str, Any]:
        """The 95 % interval, the ladder, the accuracy by first token, and the predicted digits in the order of the rows."""
        rows = self._rows
        by_root = []
        for root in (*OPERATORS, *range(1, OPERATORS.start)):
            own = [row for row in rows if row[2] == root]
            if own:
                by_root.append({"root": TOKENS[root], "samples": len(own), "accuracy": self._right(own) / len(own)})
        return {
            "interval": list(wilson_interval(self._right(rows), self.samples)),
            "ladder": self.task.ladder,
            "by_root": by_root,
            "labels": "".join(str(row[1]) for row in rows),
            "predictions": "".join(NO_ANSWER if row[3] < 0 else str(row[3]) for row in rows),
        }

    @property
    def _rows(self) -> list[list[int]]:
        """In order: processes evaluate them in turns."""
        return sorted(self.totals["rows"])

    @property
    def _missing(self) -> int:
        return sum(row[3] < 0 for row in self.totals["rows"])

    @staticmethod
    def _right(rows: Sequence[Sequence[int]]) -> int:
        return sum(row[1] == row[3] for row in rows)
