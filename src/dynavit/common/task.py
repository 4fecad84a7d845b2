"""A problem: a model with its loss and its evaluation, and everything else that depends on the problem.

The engine, the comparison, the report and the command line know problems only through this class. A new problem is a subclass
in a file of its own, registered by `tasks.table.register_task`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from .batch import Batch
from .metric import Metric


@dataclass
class NoOptions:
    """A task without options."""


class Evaluator:
    """Adds up over batches, so that processes can add up too.

    A subclass writes `update`, which calls `add`, and `results`, which reads `totals`.

    Attributes:
        totals: name to a tensor or a list. Over batches and processes tensors are added and lists are joined, so nothing may
            depend on how samples were batched or shared.
    """

    def __init__(self) -> None:
        self.totals: dict[str, Any] = {}

    def add(self, name: str, value: Tensor | list[Any]) -> None:
        self.totals[name] = self.totals[name] + value if name in self.totals else value

    def update(self, batch: Batch) -> None:
        """Run the model on a batch and add what the first `batch.count` of its samples give."""
        raise NotImplementedError

    def results(self) -> Iterator[tuple[str, float]]:
        """(name, value) from the totals; those of the task's metrics are among them.

        "not_finite", if it is there and not 0, counts samples for which the model gave no usable numbers: then the checkpoint
        never is the best one, nor where the "loss" is not finite.
        """
        raise NotImplementedError

    def notes(self) -> Iterator[str]:
        """Sentences that the user should read beside the results."""
        yield from ()

    def details(self) -> dict[str, Any]:
        """Further results as JSON takes them, too long for a line of metrics: per class, curves, matrices."""
        return {}

    def predictions(self) -> Any:
        """Every answer in a form that others read too, as JSON takes it, for `dynavit eval --save-predictions`; None: no such
        form."""
        return None

    @property
    def samples(self) -> int:
        """Number of samples that were evaluated; `update` adds them up under this name."""
        return int(self.totals.get("samples", 0))


class Task(nn.Module):
    """A problem. `task(batch)` gives {"loss": mean over the batch's samples, other scalars to log}.

    The loop weighs the loss with the batch's share of its step, trains all parameters of the task, and saves its state: the
    model's under the model's own names, and beside it what else the task holds, such as a projection head, a teacher or a
    running centre. Like every module, a task may have `set_progress(step, total)`, `commit_statistics()`, `scalars()` and the
    other methods that the engine looks for.

    Attributes:
        name: under which the task is registered.
        Options: a dataclass of its own options, `--task.NAME` on the command line.
        metrics: results that a person reads, in that order. The first one chooses the best checkpoint and is what comparisons
            compare; without any, only the loss is shown and no checkpoint is the best.
        model: what is trained and kept.
        other_weights: further models of the same kind that a checkpoint holds beside it, by the name that `--weights` takes,
            with the beginning of their names in the task's state.
        ends: a reason to end the training here, if there is one. It ends with a checkpoint and an `EndedError`.
    """

    name: ClassVar[str] = ""
    Options: ClassVar[type] = NoOptions
    leaves_early: ClassVar[bool] = False  # whether thresholds may end a prediction early
    gives_features: ClassVar[bool] = False  # whether the model's outputs are features of images, and not answers
    things: ClassVar[str] = "images"  # what its samples are, and how a file with one is called where it is predicted
    example_file: ClassVar[str] = "photo.jpg"
    other_weights: ClassVar[Mapping[str, str]] = {}
    metrics: Sequence[Metric] = ()
    model: nn.Module
    ends: str | None = None

    def __init__(self, model: nn.Module, data: Any = None, options: Any = None) -> None:
        super().__init__()
        self.model = model

    # ---- From options to a task

    @classmethod
    def check_data(cls, data: Any) -> None:
        """Raise ValueError for a data set that the task cannot use."""

    @classmethod
    def model_options(cls, data: Any, options: Any) -> dict[str, Any]:
        """Keyword arguments of `create_model` that follow from the data, such as the number of classes."""
        return {}

    @classmethod
    def build(cls, model: nn.Module, data: Any, options: Any) -> "Task":
        """The task for a model. `data` is a data set, or for prediction only what the run has stored about it (`describe`)."""
        return cls(model, data, options)

    # ---- Training

    def loader(self, data: Any, split: str, how: Any) -> Any:
        """Batches of a split (`common.data.Loader`). A task with targets or views of its own makes them here."""
        return data.loader(split, how)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        raise NotImplementedError

    def before_update(self) -> None:
        """Gradients are complete and not clipped yet: a task may clip or drop some of its own."""

    def events(self) -> Iterable[str]:
        """Sentences about what the last step showed, for the user and the log; asked after each step, on every process."""
        return ()

    # ---- Evaluation

    @property
    def main_metric(self) -> Metric | None:
        return self.metrics[0] if self.metrics else None

    def evaluator(self) -> Evaluator:
        raise NotImplementedError

    @classmethod
    def error_of(cls, results: Mapping[str, float]) -> float:
        """A share of failures from 0 to 1, for robustness."""
        raise ValueError(f"the task {cls.name!r} has no error rate, which robustness measures")

    # ---- What a person sees

    def inside(self, batches: Iterable[Batch]) -> dict[str, dict[str, Any]] | None:
        """What `dynavit analyze` shows of the model on some samples, which come one by one: {kind of figure: numbers as JSON}.

        None: attention, norms and tokens, as of every classifier of images. Each kind has its section in
        `analysis.report.inside.draw_all`.
        """
        return None

    def examples(self, batch: Batch, data: Any) -> list[dict[str, Any]]:
        """Some samples of a batch with the model's answers, for the report; JSON."""
        return []

    @classmethod
    def tables(cls, result: Mapping[str, Any]) -> list[tuple[str, list[str], list[list[str]]]]:
        """(title, header, rows) of further tables that `dynavit eval` prints, from a stored result."""
        return []

    @classmethod
    def report_sections(cls, run: Any) -> Sequence[Any]:
        """Sections of the report of a run (`analysis.report.read.Run`), from its files alone."""
        return []

    @classmethod
    def comparison_sections(cls, comparison: Any) -> Sequence[Any]:
        """Sections of the page of a comparison (`analysis.report.read.Comparison`), from files of its runs alone. `dynavit
        compare` prints their tables too."""
        return []

    # ---- Prediction

    def read_input(self, path: Path, facts: Mapping[str, Any]) -> Any:
        """A file -> the model's input for one sample, with a batch axis. `facts` is what the data set's `describe` gave."""
        raise ValueError(f"the task {self.name!r} does not predict files")

    def input_of(self, batch: Batch) -> Any:
        """A sample of a data set, alone in its batch, as `answer` takes it."""
        return batch.inputs

    def answer(self, inputs: Any, facts: Mapping[str, Any], top: int, policy: Any = None) -> dict[str, Any]:
        """The answer to one sample as JSON; `policy` are stored thresholds of a model that may stop early."""
        raise ValueError(f"the task {self.name!r} does not predict files")

    @classmethod
    def surer_than(cls, answer: Mapping[str, Any], score: float) -> Mapping[str, Any]:
        """The answer without what the model is less sure of, where a task finds several things in a file."""
        return answer

    @classmethod
    def draw(cls, picture: Any, answer: Mapping[str, Any], facts: Mapping[str, Any]) -> Any:
        """The answer drawn onto the picture (both of `PIL.Image`) it is about, for `dynavit predict --draw`."""
        raise ValueError(f"the task {cls.name!r} does not draw its answers; leave --draw out")

    @classmethod
    def answer_text(cls, answer: Mapping[str, Any]) -> str:
        """The answer as a line, without the name of the file, which is its "image"."""
        return ", ".join(f"{name} {value}" for name, value in answer.items() if name != "image")
