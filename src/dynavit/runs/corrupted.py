"""A run with corrupted images, and the files that keep its errors."""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from ..common.files import read_json, write_json
from ..common.fits import Count, Fraction
from ..data.config import DataConfig
from ..data.corruptions.exact import check_exact
from ..data.corruptions.loader import CorruptedLoader
from ..data.corruptions.severities import SMALL_SIDE, TABLES
from ..data.dataset import DataSet
from ..data.fingerprint import fingerprint
from ..data.imagenet_variants import open_imagenet_c
from ..engine.contract import Loader
from ..engine.evaluate import evaluate
from .model_files import ModelCard
from .opened import Opened
from .subject import Subject


@dataclass(frozen=True)
class Question:
    """One robustness evaluation of a run, small enough to send to another process."""

    subject: Subject
    split: str | None
    loading: DataConfig | None
    exact: bool
    seed: int
    limit: int | None
    imagenet_c: Path | None
    batch_size: int

    @property
    def run(self) -> Path:
        return self.subject.run

    def open(self, data: DataSet | None = None) -> Opened:
        return self.subject.open(data, self.loading)


class StoredError(TypedDict):
    """The error at one corruption and severity, and how many images could not be read."""

    error: Fraction
    broken: Count


class Measured(NamedTuple):
    """The error at one severity, and how many images could not be read and do not count."""

    error: float
    broken: int


class CorruptedRun:
    """An opened run, the images it is asked about, and the files that hold its errors."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.why_no_clean_images: str | None = None
        try:
            self.opened = question.open()
            self.split = question.split or self.opened.final_split
            self.opened, self.numbers = self.opened.limited(self.split, question.limit)
            _check_order(self.opened)
        except (ValueError, OSError) as error:
            if question.imagenet_c is None:
                raise
            # The folder is enough to go on; should it be the model that cannot be opened, this fails again.
            self.opened = question.open(_no_images(question.run))
            self.why_no_clean_images = str(error)
        if question.exact:
            check_exact(self.opened.images.channels, *self.opened.images.image_size)
        clean = None if self.why_no_clean_images else self._clean_images()
        self.conditions: dict[str, Any] = {
            "model": which_weights(self.opened),
            "images": self._corrupted_images(clean),
            "clean": clean,
        }

    def alone(self) -> AbstractContextManager[None]:
        """Inside, errors may be written down: by this process, of several by the first, and by those that it starts."""
        return self.question.subject.directory.alone(main=self.opened.processes.is_main)

    def _clean_images(self) -> dict[str, Any]:
        data = self.opened.images
        return {
            "data": data.name,
            "split": self.split,
            "fingerprint": fingerprint_of(self.opened, self.split),
            "samples": len(data.splits[self.split]),
            "image_size": list(data.image_size),
        }

    def _corrupted_images(self, clean: dict[str, Any] | None) -> dict[str, Any]:
        question, size = self.question, list(self.opened.images.image_size)
        if question.imagenet_c is not None:
            folder = str(question.imagenet_c.resolve())
            return {"data": "imagenet_c", "folder": folder, "limit": question.limit, "image_size": size}
        assert clean is not None, "they are what is corrupted"
        table = "extra" if question.exact else "small" if min(size) <= SMALL_SIDE else "large"
        stored = {} if TABLES[table].jpeg is None else {"jpeg": TABLES[table].jpeg}
        return {**clean, "table": table, **stored, "seed": question.seed, "exact": question.exact}

    @cached_property
    def clean_loader(self) -> Loader:
        return self.opened.loader(self.split, self.question.batch_size)

    def loader(self, name: str, severity: int) -> Loader:
        question = self.question
        if question.imagenet_c is None or severity == 0:
            return CorruptedLoader(
                self.clean_loader,
                self.opened.images,
                name,
                severity,
                numbers=self.numbers,
                seed=question.seed,
                exact=question.exact,
            )
        opened = self.opened
        data = open_imagenet_c(question.imagenet_c, name, severity, opened.card.classes)
        opened = replace(opened, data=data.prepared_as(opened.card.facts, opened.path))
        return opened.limited("test", question.limit)[0].loader("test", question.batch_size)

    def known(self, wanted: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Measured]:
        """(corruption, severity) to what was found before. All processes go by the files that the first one sees."""
        files = [(name, severity, self._file(name, severity)) for name, severity in wanted]
        stored = [(name, severity, read_json(file, StoredError)) for name, severity, file in files if file.is_file()]
        seen = [(name, severity, content["error"], content["broken"]) for name, severity, content in stored]
        first = json.loads(self.opened.processes.join([json.dumps(seen)])[0])
        return {(name, severity): Measured(error, broken) for name, severity, error, broken in first}

    def measure(
        self, name: str, severities: Sequence[int], tick: Callable[[], None], note: Callable[[str], None]
    ) -> dict[int, Measured]:
        """At these severities, each written down at once."""
        measured = {}
        for severity in severities:
            # Images that cannot be read are the same for every corruption that is computed, so they are told once.
            told = note if severity == 0 or self.question.imagenet_c is not None else None
            results = evaluate(self.opened.task, self.loader(name, severity), self.opened.processes, told)
            error = self.opened.task.error_of(results)
            measured[severity] = found = Measured(error, results.get("broken", 0))
            if self.opened.processes.is_main:
                about = {"corruption": name, "severity": severity, **self._asked(severity)}
                write_json(self._file(name, severity), about | found._asdict())
            tick()
        return measured

    def _asked(self, severity: int) -> dict[str, Any]:
        """All that an error depends on, apart from corruption and severity."""
        return {"model": self.conditions["model"], "images": self.conditions["images" if severity else "clean"]}

    def _file(self, name: str, severity: int) -> Path:
        """One for each error, so that two evaluations at once do not overwrite what the other has found."""
        asked = self._asked(severity)
        key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:10]
        data = asked["images"]["data"].replace("/", "_")
        return self.question.subject.directory.robustness / f"{data}-{key}" / f"{name}-{severity}.json"


def which_weights(opened: Opened) -> dict[str, Any]:
    """The weights that are asked, with the checksum of their file."""
    return {name: value for name, value in opened.source.items() if name != "run"}


def _no_images(run: Path) -> DataSet:
    card = ModelCard.read(run)
    channels = (0.5,) * len(card.preprocess["mean"])
    return DataSet("imagenet_c", {}, card.classes, (1, 1), channels, channels)


def _check_order(opened: Opened) -> None:
    data, classes = opened.images, opened.card.classes
    if data.classes != classes and sorted(data.classes) == sorted(classes):
        raise ValueError(f"{data.name} has the classes of {opened.path} in another order, so every error would be wrong")


def fingerprint_of(opened: Opened, split: str) -> str:
    """The first process's: on another machine, times of files may be others."""
    return opened.processes.join([fingerprint(opened.images.splits[split])])[0]
