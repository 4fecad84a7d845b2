"""The model of a run, asked about files or about samples of a data set."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..common.batch import moved
from ..common.task import Task
from ..deploy.bundle.answers import image_files
from ..engine.config import EngineConfig
from ..engine.processes import Processes
from ..tasks.table import TASKS
from .assemble import build_task
from .model_files import ModelCard
from .subject import Subject

if TYPE_CHECKING:
    from PIL.Image import Image


class RunPredictor:
    """See `predict.Predictor`."""

    def __init__(self, subject: Subject) -> None:
        self.subject, self.card, self.policy = subject, ModelCard.read(subject.run), subject.policy()
        self._pictures: dict[str, Callable[[], Image]] = {}  # of samples, by the name in their answer

    def predict_files(self, paths: Sequence[str | PathLike[str]], top: int = 5) -> list[dict[str, Any]]:
        return [self._predict(path, top) for path in image_files(paths)]

    @torch.no_grad()
    def predict_samples(self, split: str | None, limit: int, top: int) -> list[dict[str, Any]]:
        opened = self.subject.open()
        split = split or opened.final_split
        few, numbers = opened.limited(split, limit)
        answers = []
        for (batch,) in few.loader(split, 1, alone=True).epoch():
            if batch.count:
                inputs = opened.task.input_of(batch.to(opened.processes.device, opened.processes.dtype))
                name = f"{opened.data.name} {split} {int(numbers[int(batch.index[0])])}"
                answers.append({"image": name, **opened.task.answer(inputs, self.card.facts, top, self.policy)})
                if hasattr(few.data, "picture"):
                    self._pictures[name] = partial(few.data.picture, split, int(batch.index[0]))
        return answers

    def overview(self) -> dict[str, str]:
        from .overview import overview_of_run

        leaves = "where its thresholds allow" if self.policy is not None else "none: the last exit answers (dynavit calibrate)"
        early = {"exits": leaves} if self.task.leaves_early else {}
        return overview_of_run(self.subject.run, self.task.model, self.card, self.source, measured=False) | early

    def text(self, answer: Mapping[str, Any]) -> str:
        return TASKS[self.card.task].answer_text(answer)

    def surer_than(self, answer: Mapping[str, Any], score: float) -> dict[str, Any]:
        return dict(answer if "error" in answer else TASKS[self.card.task].surer_than(answer, score))

    def drawn(self, answer: Mapping[str, Any]) -> "Image":
        """A file as `read_image` reads it, or a sample as its data set keeps it."""
        from ..data.read_image import read_image

        name = str(answer["image"])
        if name not in self._pictures and not Path(name).is_file():
            raise ValueError(f"{name}: its data set keeps no picture to draw on; name image files")
        picture = self._pictures[name]() if name in self._pictures else read_image(name)
        return TASKS[self.card.task].draw(picture, answer, self.card.facts)

    @property
    def task(self) -> Task:
        return self._loaded[0]

    @property
    def source(self) -> dict[str, Any]:
        """Which weights answer, see `Opened`."""
        return self._loaded[1]

    @cached_property
    def _loaded(self) -> tuple[Task, dict[str, Any]]:
        """The task is built without the data set, from what the run has stored about it."""
        model, _, source = self.subject.load()
        self.card.require_guests(self.subject.run, "task")
        processes = Processes(EngineConfig(device=self.subject.device))
        model.to(processes.device, processes.dtype)  # also of a run in float64
        return build_task(self.card.task, model, self.card.described_data, self.card.task_options).eval(), source

    @torch.no_grad()
    def _predict(self, path: Path, top: int) -> dict[str, Any]:
        try:
            inputs = self.task.read_input(path, self.card.facts)
        except ValueError as error:
            return {"image": str(path), "error": str(error)}
        like = next(self.task.model.parameters())
        there = moved(inputs, like.device, like.dtype)
        try:
            return {"image": str(path), **self.task.answer(there, self.card.facts, top, self.policy)}
        except (ValueError, RuntimeError) as error:
            where = self.subject.directory.card_file
            raise ValueError(f"the model cannot answer about images as {where} prepares them: {error}") from error
