"""A task of your own: read a digit as a number, by regression. Its main metric is better when smaller.

dynavit train --plugin examples/my_task.py --task number --out runs/number
dynavit compare --plugin examples/my_task.py --task number --norms ln,dtn --seeds 0,1,2 --out runs/numbers
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

import dynavit


@dataclass
class NumberOptions:
    """Options of the task, `--task.delta 0.5`.

    Attributes:
        delta: errors below it count squared, larger ones linearly.
    """

    delta: float = 1.0


@dynavit.register_task("number")
class Number(dynavit.ImageTask):
    """Read the class as a number."""

    Options = NumberOptions
    metrics = (
        dynavit.Metric("error", "mean absolute error", better="smaller", digits=2),
        dynavit.Metric("exact", "rounded to the right number", percent=True),
    )

    def __init__(self, model, data, options):
        super().__init__(model)
        self.delta = options.delta

    @classmethod
    def outputs(cls, data, options):
        return 1  # numbers that the model gives for an image

    def forward(self, batch):
        return {"loss": F.huber_loss(self.model(batch.inputs)[:, 0], batch.targets.float(), delta=self.delta)}

    def evaluator(self):
        return NumberEvaluator(self.model)

    def answer(self, inputs, facts, top, policy=None):
        return {"number": round(float(self.model(inputs)), 2)}


class NumberEvaluator(dynavit.Evaluator):
    """Sums over images, so that batches and processes add up."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    @torch.no_grad()
    def update(self, batch):
        read, truth = self.model(batch.inputs)[: batch.count, 0].double(), batch.targets[: batch.count]
        self.add("samples", torch.tensor(batch.count))
        self.add("error", (read - truth).abs().sum())
        self.add("exact", (read.round() == truth).sum())

    def results(self):
        yield "error", float(self.totals["error"]) / self.samples
        yield "exact", float(self.totals["exact"]) / self.samples
