"""A small task and loader with everything that has to survive a resume: dropout, running statistics, a count, annealing."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from dynavit.common.batch import Batch
from dynavit.common.metric import Metric
from dynavit.engine.contract import Evaluator, Task

FEATURES, CLASSES = 6, 3


class Tracker(nn.Module):
    """Subtracts a running mean, counts optimiser steps, and is annealed: one of each optional method."""

    def __init__(self, width: int, annealed: bool = True) -> None:
        super().__init__()
        self.annealed = annealed
        self.scale = nn.Parameter(torch.ones(1, width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("commits", torch.zeros((), dtype=torch.int64))
        self.strength = 0.0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.lerp_(x.detach().mean(0).to(self.mean.dtype), 0.1)
        return (x - self.strength * self.mean.clone()) * self.scale

    def set_progress(self, step: int, total: int) -> None:
        self.strength = step / total if self.annealed else 0.0

    def commit_statistics(self) -> None:
        self.commits += 1

    def no_weight_decay_parameters(self) -> set[str]:
        return {"scale"}

    def scalars(self) -> dict[str, float]:
        return {"commits": float(self.commits), "scale.0": float(self.scale[0, 0]), "scale.1": float(self.scale[0, 1])}


class TinyTask(Task):
    metrics = (Metric("top1", "top-1", percent=True),)

    def __init__(self, width: int = 8, dropout: float = 0.2, seed: int = 0, annealed: bool = True) -> None:
        torch.manual_seed(seed)
        layers = (Tracker(width, annealed), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, CLASSES))
        super().__init__(nn.Sequential(nn.Linear(FEATURES, width), *layers))

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        logits = self.model(batch.inputs)
        loss = nn.functional.cross_entropy(logits, batch.targets)
        return {"loss": loss, "confidence": logits.softmax(-1).amax(-1).mean()}

    def evaluator(self) -> "TinyEvaluator":
        return TinyEvaluator(self.model)


class TinyEvaluator(Evaluator):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.totals = {name: torch.zeros((), dtype=torch.float64) for name in ("samples", "right", "loss")}

    def update(self, batch: Batch) -> None:
        logits, targets = self.model(batch.inputs)[: batch.count], batch.targets[: batch.count]
        self.totals["samples"] += batch.count
        self.totals["right"] += (logits.argmax(-1) == targets).sum()
        self.totals["loss"] += nn.functional.cross_entropy(logits, targets, reduction="sum")

    def results(self) -> Iterator[tuple[str, float | list[float]]]:
        yield "loss", float(self.totals["loss"] / self.totals["samples"])
        yield "top1", float(self.totals["right"] / self.totals["samples"])
        yield "samples", [float(self.totals["samples"])]


class TinyLoader:
    """Random points, labelled by a rule and moved a little, differently in every epoch. The last batch is small."""

    def __init__(
        self, samples: int = 29, batch_size: int = 8, rank: int = 0, world: int = 1, accumulate: int = 2, jitter: float = 0.1
    ) -> None:
        generator = torch.Generator().manual_seed(1)
        self.points = torch.randn(samples, FEATURES, generator=generator)
        self.labels = (self.points @ torch.randn(FEATURES, CLASSES, generator=generator)).argmax(-1)
        self.samples, self.steps = samples, -(-samples // batch_size)
        self.batch_size, self.rank, self.world, self.accumulate, self.jitter = batch_size, rank, world, accumulate, jitter
        self.broken: dict[tuple[int, int], str] = {}  # (epoch, step): message of the last process

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[list[Batch]]:
        generator = torch.Generator().manual_seed(100 + epoch)
        points = self.points + self.jitter * torch.randn(self.points.shape, generator=generator)
        order = torch.randperm(self.samples, generator=generator) if self.jitter else torch.arange(self.samples)
        for step in range(start, self.steps):
            whole = order[step * self.batch_size : (step + 1) * self.batch_size]
            parts = [micro_batch.tensor_split(self.world)[self.rank] for micro_batch in whole.tensor_split(self.accumulate)]
            batches = [
                Batch(points[part], self.labels[part], part, count, len(whole))
                for part, count in ((part if len(part) else whole[:1], len(part)) for part in parts)
            ]
            if (epoch, step) in self.broken and self.rank == self.world - 1:
                batches[0].broken.append(self.broken[epoch, step])
            yield batches


def eval_loader(**options: int) -> TinyLoader:
    return TinyLoader(samples=21, accumulate=1, jitter=0.0, **options)
