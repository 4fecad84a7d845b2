"""A run and corrupted images to ask it about, and the files that keep its errors."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from .assemble import prepared_as
from .common.files import write_json
from .data.config import DataConfig
from .data.corrupted_loader import CorruptedLoader
from .data.corruption_severities import SMALL_SIDE
from .data.dataset import DataSet
from .data.imagenet_variants import open_imagenet_c
from .engine.checkpoint import checkpoint_step
from .engine.contract import Loader
from .engine.evaluate import evaluate
from .model_files import ModelCard
from .opened import OpenedRun, open_run
from .tasks.choose import task_for
from .tasks.classification import Classification
from .tasks.early_exit import EarlyExit

DIRECTORY = Path("eval") / "robust"


@dataclass(frozen=True)
class Question:
    """What is asked of which run, small enough to send to another process."""

    run: Path
    split: str | None
    data_name: str | None
    data_dir: Path | None
    loading: DataConfig | None
    checkpoint: Literal["last", "best"]
    weights: Literal["model", "ema"] | None
    exact: bool
    seed: int
    limit: int | None
    imagenet_c: Path | None
    batch_size: int
    device: str | None

    def open(self, data: DataSet | None = None) -> OpenedRun:
        return open_run(
            self.run,
            data=data,
            data_name=self.data_name,
            data_dir=self.data_dir,
            loading=self.loading,
            checkpoint=self.checkpoint,
            weights=self.weights,
            device=self.device,
        )

    def weights_of(self, opened: OpenedRun) -> dict[str, Any]:
        """Which weights are asked: those of another step are another model."""
        usual = "ema" if opened.config.ema.decay else "model"
        step = checkpoint_step(self.run / "checkpoints" / self.checkpoint)
        return {"checkpoint": self.checkpoint, "weights": self.weights or usual, "step": step}


class Subject:
    """The opened run, which images it is asked about, and the files that hold its errors."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.why_no_clean_images: str | None = None
        try:
            self.opened = question.open()
            self.split = question.split or self.opened.final_split
            self.opened, self.numbers = limited(self.opened, self.split, question.limit)
        except (ValueError, OSError) as error:
            if question.imagenet_c is None:
                raise
            # The folder is enough to go on; should it be the model that cannot be opened, this fails again.
            self.opened = question.open(_no_images(question.run))
            self.why_no_clean_images = str(error)
        self.conditions = {"model": question.weights_of(self.opened), "images": self._images()}
        key = hashlib.sha256(json.dumps(self.conditions, sort_keys=True).encode()).hexdigest()[:10]
        self.directory = question.run / DIRECTORY / f"{self.conditions['images']['data'].replace('/', '_')}-{key}"

    def _images(self) -> dict[str, Any]:
        question, data = self.question, self.opened.data
        size = {"image_size": list(data.image_size)}
        if question.imagenet_c is not None:
            return {"data": "imagenet_c", "folder": str(question.imagenet_c.resolve()), "limit": question.limit, **size}
        return {
            "data": data.name,
            "split": self.split,
            "labels": digest(data.splits[self.split].labels),  # of these images in this order, wherever they lie
            "samples": len(data.splits[self.split]),
            **size,
            "table": "small" if min(data.image_size) <= SMALL_SIDE and not question.exact else "large",
            "seed": question.seed,
            "exact": question.exact,
        }

    @cached_property
    def task(self) -> Classification | EarlyExit:
        return task_for(self.opened.model, len(self.opened.card.classes))

    @cached_property
    def clean_loader(self) -> Loader:
        return self.opened.loader(self.split, self.question.batch_size)

    def loader(self, name: str, severity: int) -> Loader:
        question = self.question
        if question.imagenet_c is None or severity == 0:
            return CorruptedLoader(
                self.clean_loader,
                self.opened.data,
                name,
                severity,
                numbers=self.numbers,
                seed=question.seed,
                exact=question.exact,
            )
        opened = self.opened
        data = open_imagenet_c(question.imagenet_c, name, severity, opened.card.classes)
        opened = replace(opened, data=prepared_as(data, opened.card.preprocess, opened.path))
        return limited(opened, "test", question.limit)[0].loader("test", question.batch_size)

    def measured(self, name: str) -> dict[int, float]:
        """Severity to error, as far as it is known."""
        file = self.directory / f"{name}.json"
        found = json.loads(file.read_text())["errors"] if file.is_file() else {}
        return {int(severity): error for severity, error in found.items()}

    def measure(self, name: str, severities: Sequence[int], tick: Callable[[], None], note: Callable[[str], None]) -> None:
        """Fill in what is missing at these severities, and write it down at once."""
        errors = self.measured(name)
        for severity in severities:
            # Images that cannot be read are the same for every corruption that is computed, so they are told once.
            told = note if severity == 0 or self.question.imagenet_c is not None else None
            results = evaluate(self.task, self.loader(name, severity), self.opened.processes, told)
            errors[severity] = 1 - results["top1"]
            if self.opened.processes.is_main:
                known = {str(each): errors[each] for each in sorted(errors)}
                write_json(self.directory / f"{name}.json", {"corruption": name, **self.conditions, "errors": known})
            tick()


def limited(opened: OpenedRun, split: str, limit: int | None) -> tuple[OpenedRun, Tensor]:
    """With `limit` images of the split, evenly from its beginning to its end, and the numbers they had in it."""
    data = opened.data
    if split not in data.splits:
        raise ValueError(f"{data.name} has no split {split!r}; it has {', '.join(data.splits)}")
    whole = data.splits[split]
    kept = min(limit or len(whole), len(whole))
    numbers = torch.arange(kept) * len(whole) // kept
    return replace(opened, data=replace(data, splits={split: whole.subset(numbers)})) if limit else opened, numbers


def _no_images(run: Path) -> DataSet:
    card = ModelCard.read(run)
    channels = (0.5,) * len(card.preprocess["mean"])
    return DataSet("imagenet_c", {}, card.classes, (1, 1), channels, channels)


def digest(labels: Tensor) -> str:
    return hashlib.sha256(labels.numpy().tobytes()).hexdigest()[:10]
