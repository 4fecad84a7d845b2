"""A task of one's own: by how many quarter turns was an image rotated?

It makes its own targets (turned images), has an option and a main metric that is better when smaller, answers about files, and
brings a section of the report. `dynavit train --plugin rotation.py --task rotation --task.turns 4`.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

import dynavit


@dataclass
class RotationOptions:
    """Options of the task rotation.

    Attributes:
        turns: how many rotations are told apart; 2 are upright and upside down.
    """

    turns: int = 4


class Turned:
    """A loader whose images are turned by their number and the epoch, so that a resumed run sees the same again."""

    def __init__(self, loader, turns):
        self.loader, self.turns = loader, turns
        self.steps, self.samples = loader.steps, loader.samples

    def epoch(self, epoch=0, start=0):
        for batches in self.loader.epoch(epoch, start):
            yield [self.turned(batch, epoch) for batch in batches]

    def turned(self, batch, epoch):
        turns = (batch.index + epoch) % self.turns
        quarters = (turns * (4 // self.turns)).tolist()
        images = [torch.rot90(image, k, (-2, -1)) for image, k in zip(batch.inputs, quarters, strict=True)]
        return replace(batch, inputs=torch.stack(images), targets=turns)


@dynavit.register_task("rotation")
class Rotation(dynavit.ImageTask):
    """Tell by how many quarter turns an image was rotated."""

    Options = RotationOptions
    metrics = (
        dynavit.Metric("degrees", "angle error, degrees", better="smaller", digits=1),
        dynavit.Metric("loss", "loss", better="smaller", digits=3),
    )

    def __init__(self, model, data, options):
        super().__init__(model)
        self.turns = options.turns

    @classmethod
    def outputs(cls, data, options):
        return options.turns

    def loader(self, data, split, how):
        return Turned(super().loader(data, split, how), self.turns)

    def forward(self, batch):
        logits = self.model(batch.inputs)
        right = (logits.argmax(-1) == batch.targets).float().mean()
        return {"loss": F.cross_entropy(logits, batch.targets), "right": right}

    def evaluator(self):
        return RotationEvaluator(self.model, self.turns)

    def answer(self, inputs, facts, top, policy=None):
        return {"degrees": int(self.model(inputs).argmax(-1)) * 360 // self.turns}

    @classmethod
    def report_sections(cls, run):
        from dynavit.analysis.report import Section, Text

        errors = [result["degrees"] for result in run.evaluations.values()]
        return [Section("Rotation", [Text(f"The mean error is {min(errors):.1f}°.")])] if errors else []


class RotationEvaluator(dynavit.Evaluator):
    """The angle between the right and the chosen rotation, the shorter way round."""

    def __init__(self, model, turns):
        super().__init__()
        self.model, self.turns = model, turns

    @torch.no_grad()
    def update(self, batch):
        logits, targets = self.model(batch.inputs)[: batch.count], batch.targets[: batch.count]
        apart = (logits.argmax(-1) - targets).abs()
        apart = torch.minimum(apart, self.turns - apart)
        self.add("samples", torch.tensor(batch.count))
        self.add("degrees", (apart * 360 / self.turns).sum().double())
        self.add("loss", F.cross_entropy(logits, targets, reduction="sum").double())

    def results(self):
        yield "degrees", float(self.totals["degrees"]) / self.samples
        yield "loss", float(self.totals["loss"]) / self.samples
