"""Answers of a run or a bundle about files, or about samples of a data set. One interface for both."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, Unpack

import torch

from ..deploy.bundle.answers import image_files
from ..deploy.bundle.manifest import is_bundle
from ..engine.config import EngineConfig
from ..engine.processes import Processes
from .assemble import build_task
from .subject import Subject, WhichOptions

DEFAULT_LIMIT = 16  # samples of a data set


class Predictor(Protocol):
    """Answers about files: a dict for each, {"image": path, ...}, or {"image", "error"} for one that cannot be read."""

    def predict_files(self, paths: Sequence[str | PathLike[str]], top: int = 5) -> list[dict[str, Any]]: ...

    def text(self, answer: Mapping[str, Any]) -> str:
        """An answer as a line, without the name of the file."""
        ...


def predictor(subject: Subject, *, int8: bool = False) -> Predictor:
    """The predictor of a run, or of a bundle of `dynavit export`."""
    if not is_bundle(subject.run):
        if int8:
            raise ValueError(f"{subject.run} is not a bundle, and only those hold 8-bit weights; see dynavit export --int8")
        return RunPredictor(subject)
    from ..deploy.bundle.runner import load_bundle

    if not subject.is_usual or subject.device not in (None, "cpu") or subject.data is not None:
        raise ValueError(
            f"{subject.run} is a bundle: one set of weights, for the CPU; leave --checkpoint, --weights, --data, --device out"
        )
    return load_bundle(subject.run, int8=int8)


def predict_run(
    run: str | PathLike[str] | Subject,
    images: Sequence[str | PathLike[str]] = (),
    *,
    top: int = 5,
    split: str | None = None,
    limit: int = DEFAULT_LIMIT,
    **which: Unpack[WhichOptions],
) -> list[dict[str, Any]]:
    """The answers of a run's model about image files; a directory stands for the images in it.

    One dict for each file, for a classifier {"image", "label", "confidence", "top": [{"label", "confidence"}, ...]}, or
    {"image", "error"}. A cascade stops as soon as the thresholds that `dynavit calibrate` stored allow, and "exit" says where,
    counted from 1. They were found for the last checkpoint; without them, or with another checkpoint, the last exit answers.

    Args:
        images: files and directories. Without any, samples of the run's data set, or of the one that `data` names.
        split: of these samples; test where there is one, otherwise val, if not given.
        limit: number of these samples, evenly over the split.
        which: the fields of `Subject`: checkpoint, weights, data, data_dir, device, strict.
    """
    subject = Subject.of(run, which)
    return RunPredictor(subject).predict_files(images, top) if images else predict_samples(subject, split, limit, top)


class RunPredictor:
    """The model of a run, asked about files."""

    def __init__(self, subject: Subject) -> None:
        model, self.card = subject.load()
        self.card.require_guests(subject.run, "task")
        self.policy = subject.policy()
        self.processes = Processes(EngineConfig(device=subject.device))
        model.to(self.processes.device, self.processes.dtype)  # also of a run in float64
        self.task = build_task(self.card.task, model, self.card.described_data, self.card.task_options).eval()

    def predict_files(self, paths: Sequence[str | PathLike[str]], top: int = 5) -> list[dict[str, Any]]:
        return [self._predict(path, top) for path in image_files(paths)]

    def text(self, answer: Mapping[str, Any]) -> str:
        return self.task.answer_text(answer)

    @torch.no_grad()
    def _predict(self, path: Path, top: int) -> dict[str, Any]:
        try:
            inputs = self.task.read_input(path, self.card.facts)
        except ValueError as error:
            return {"image": str(path), "error": str(error)}
        return {"image": str(path), **self.task.answer(inputs.to(self.processes.device), self.card.facts, top, self.policy)}


@torch.no_grad()
def predict_samples(subject: Subject, split: str | None, limit: int, top: int) -> list[dict[str, Any]]:
    """The same about samples of a data set, which are named by their split and number."""
    opened = subject.open()
    split = split or opened.final_split
    few, numbers = opened.limited(split, limit)
    policy, facts, answers = subject.policy(), opened.card.facts, []
    for (batch,) in few.loader(split, 1, alone=True).epoch():
        if not batch.count:
            continue
        inputs = batch.to(opened.processes.device, opened.processes.dtype).inputs
        answer = opened.task.answer(inputs, facts, top, policy)
        answers.append({"image": f"{opened.data.name} {split} {int(numbers[int(batch.index[0])])}", **answer})
    return answers
