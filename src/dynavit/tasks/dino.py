"""Self-distillation without labels (DINO). Caron et al., ICCV 2021, arXiv 2104.14294.

A student sees small and large views of an image and learns to give them the code that a teacher gives to the large ones. The
teacher is the running average of the student, and what a run keeps: its backbone is the task's model.

    each step:   targets   = softmax((teacher(large views) - centre) / 0.04), or Sinkhorn's
                 loss      = mean cross entropy of student(other views) with them
                 teacher  <- m teacher + (1 - m) student       after the optimiser's step
                 centre   <- 0.9 centre + 0.1 mean of the teacher's logits

The equations are in `self_distillation.py`.
"""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..common.batch import Batch
from ..common.data import Loader, LoaderOptions
from ..common.metric import Metric
from ..common.task import Evaluator
from ..data.dataset import DataSet
from ..data.multicrop import View, dino_views, multicrop_loader
from ..data.splits import limited
from ..models.projection import MultiCropStudent, ProjectionHead, features_of_views
from ..norms import Norm
from ..norms.statistics.distributed import sum_over_processes
from .collapse import WINDOW, CollapseWatch, Sums
from .image import ImageTask
from .neighbour_evaluator import NeighbourEvaluator
from .options import DinoOptions
from .self_distillation import (
    centred_targets,
    distillation_loss,
    entropy,
    momentum_at,
    sinkhorn_targets,
    temperature_at,
)

GLOBAL_VIEWS = 2
BANK_SEED = 0


class Dino(ImageTask):
    """Learn features of images without labels. The model maps (b, c, h, w) to features (b, c) and is the teacher's backbone.

    Batches of the training loader have lists of views as inputs, the two large ones first. "loss" is the mean cross entropy,
    "code_entropy" the mean entropy of the targets, "kl" what lies between.
    """

    name: ClassVar[str] = "dino"
    Options: ClassVar[type] = DinoOptions
    gives_features: ClassVar[bool] = True
    other_weights: ClassVar[dict[str, str]] = {"student": "student.backbone."}
    metrics: Sequence[Metric] = (
        Metric("knn", "k-NN top-1", percent=True),
        Metric("linear", "linear probe top-1", percent=True),
        Metric("knn_pixels", "k-NN top-1 on pixels", percent=True),
    )
    centre: Tensor

    def __init__(self, model: nn.Module, options: DinoOptions) -> None:
        super().__init__(model)
        self.options = options
        dim = feature_size(model)
        head = ProjectionHead(dim, options.hidden, options.bottleneck, options.prototypes, trained_length=options.train_length)
        self.student = MultiCropStudent(copy.deepcopy(model), head)
        self.teacher_head = copy.deepcopy(head)
        for part in (self.model, self.teacher_head):
            part.requires_grad_(False)
        self.register_buffer("centre", torch.zeros(options.prototypes))
        self.watch = CollapseWatch(dim, options.prototypes)
        self.steps_per_epoch, self.window_steps = 1, 1  # the loader tells
        self.bank: Loader | None = None
        self.gradient_norms: dict[str, Tensor] = {}
        self.pending: tuple[Tensor, Sums] | None = None  # collected in this step
        self.set_progress(0, 1)

    # ---- From options to a task

    @classmethod
    def check_data(cls, data: Any) -> None:
        if not isinstance(data, DataSet):
            raise ValueError(
                f"the task dino makes views of images, and {data.name} is a {type(data).__name__}; leave --task out"
            )

    @classmethod
    def outputs(cls, data: Any, options: Any) -> int:
        return 0  # features

    @classmethod
    def build(cls, model: nn.Module, data: Any, options: DinoOptions) -> "Dino":
        if hasattr(model, "exits"):
            raise ValueError(f"dino trains models with one output, and {type(model).__name__} has several exits")
        task = cls(model, options)
        if isinstance(data, DataSet) and "train" in data.splits:
            task.check_views(views_of(data, options), data.channels)
        return task

    @torch.no_grad()
    def check_views(self, views: Sequence[View], channels: int) -> None:
        """The model takes views of every size; ValueError where it does not."""
        like = next(self.model.parameters())
        for size in dict.fromkeys(view.size for view in views):
            try:
                self.model.eval()(torch.zeros(1, channels, *size, device=like.device, dtype=like.dtype))
            except (AssertionError, RuntimeError, ValueError) as error:
                raise ValueError(
                    f"{type(self.model).__name__} does not take views of {size[0]}x{size[1]} pixels ({error}); "
                    "--task.local_size is a multiple of the patches, and models of timm need "
                    "--model_options.dynamic_img_size true"
                ) from error

    # ---- Training

    def train(self, mode: bool = True) -> "Dino":
        """The teacher drops nothing, but its norms take the statistics of its own views and keep running ones of their own."""
        super().train(mode)
        for part in (self.model, self.teacher_head):
            for module in part.modules():
                module.training = mode and isinstance(module, Norm | _BatchNorm)
        return self

    def loader(self, data: Any, split: str, how: LoaderOptions) -> Loader:
        """Views for training; images as they are for everything else, and beside them the bank that neighbours come from."""
        if not how.train:
            self.bank = self._bank(data, how)
            return data.loader(split, how)
        loader = multicrop_loader(data, split, how, views_of(data, self.options), self.options.colours)
        self.steps_per_epoch = loader.steps
        self.window_steps = -(-WINDOW // (GLOBAL_VIEWS * min(how.batch_size, loader.samples)))
        return loader

    def _bank(self, data: Any, how: LoaderOptions) -> Loader | None:
        """Training images, equally many of each class, all of them for every process."""
        if "train" not in data.splits:
            return None
        labels = data.splits["train"].labels
        wanted = min(self.options.bank or len(labels), len(labels))
        if self.options.neighbours > wanted:
            raise ValueError(
                f"task.neighbours={self.options.neighbours} cannot vote among {wanted} training images; raise --task.bank or "
                "take fewer neighbours"
            )
        chosen = data.subset("train", limited(labels, wanted, BANK_SEED))
        return chosen.loader("train", replace(how, rank=0, world=1))

    def set_progress(self, step: int, total: int) -> None:
        o, epoch = self.options, self.steps_per_epoch
        self.step, self.total = step, total
        self.momentum = momentum_at(step, total, o.momentum)
        start = o.teacher_temperature if o.warmup_temperature is None else o.warmup_temperature
        warmup = round(o.warmup_temperature_epochs * epoch)
        self.temperature = temperature_at(step, warmup, start, o.teacher_temperature)
        self.frozen = step < round(o.freeze_epochs * epoch)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        views: list[Tensor] = batch.inputs
        with torch.no_grad():
            features = features_of_views(self.model, views[:GLOBAL_VIEWS])
            logits = _wide(self.teacher_head(features))
            targets = self.targets(logits, batch.count)
            self._collect(logits[:, : batch.count], targets[:, : batch.count], features[:, : batch.count])
        log_p = (_wide(self.student(views)) / self.options.student_temperature).log_softmax(-1)
        loss = distillation_loss(log_p, targets)
        own = entropy(targets).mean()
        return {"loss": loss, "code_entropy": own, "kl": loss.detach() - own}

    def targets(self, logits: Tensor, count: int) -> Tensor:
        """The codes to learn, (i, b, k), from the teacher's logits; the first `count` samples count."""
        if self.options.targets == "sinkhorn":
            return sinkhorn_targets(logits, count, self.temperature)
        return centred_targets(logits, self.centre, self.temperature)

    def before_update(self) -> None:
        parts = {"backbone": self.student.backbone, "head": self.student.head}
        self.gradient_norms = {
            name: torch.nn.utils.get_total_norm([p.grad for p in part.parameters() if p.grad is not None])
            for name, part in parts.items()
        }
        if self.frozen:  # without a gradient the optimiser neither moves nor decays a parameter
            for parameter in self.student.head.prototypes.parameters():
                parameter.grad = None

    # ---- After the optimiser's step: teacher, centre, and a look at the codes

    def _collect(self, logits: Tensor, targets: Tensor, features: Tensor) -> None:
        logits, targets, features = (x.flatten(0, 1) for x in (logits, targets, features))
        sums = Sums.of(targets, features)
        before = self.pending
        self.pending = (logits.sum(0), sums) if before is None else (before[0] + logits.sum(0), before[1].plus(sums))

    def forget_statistics(self) -> None:
        """Drop what was collected in a step that is not made, or made again."""
        self.pending = None

    @torch.no_grad()
    def commit_statistics(self) -> None:
        self.follow()
        if self.pending is None:
            return
        logits, *sums = sum_over_processes(self.pending[0], *self.pending[1])
        together = Sums(*sums)
        self.centre.lerp_((logits / together.codes_seen).to(self.centre.dtype), 1 - self.options.centre_momentum)
        self.watch.add(together)
        self.forget_statistics()
        if (self.step + 1) % self.window_steps == 0:
            self.news = self.watch.close(self.step, self.total)

    @torch.no_grad()
    def follow(self) -> None:
        """teacher <- m teacher + (1 - m) student, parameters only: running statistics are each one's own."""
        pairs = [*zip(self.model.parameters(), self.student.backbone.parameters(), strict=True)]
        pairs += zip(self.teacher_head.parameters(), self.student.head.parameters(), strict=True)
        own, others = (list(side) for side in zip(*pairs, strict=True))
        torch._foreach_lerp_(own, [other.detach() for other in others], weight=1 - self.momentum)

    news: str | None = None

    def events(self) -> Iterable[str]:
        """A collapse, at the step where it is seen."""
        news, self.news = self.news, None
        if news is not None and self.options.on_collapse == "stop":
            self.ends = news
        return () if news is None else (news,)

    def no_weight_decay(self) -> set[str]:
        """The student's class token and positions, as its model says."""
        exempt = getattr(self.student.backbone, "no_weight_decay", set)
        return {f"student.backbone.{name}" for name in exempt()}

    def scalars(self) -> dict[str, float]:
        """Schedules, gradients, the centre, and the measures of collapse."""
        norms = {f"gradient_{name}": float(norm) for name, norm in self.gradient_norms.items()}
        return {
            "temperature": self.temperature,
            "momentum": self.momentum,
            **norms,
            "centre_norm": float(self.centre.norm()),
            **self.watch.measures,
            "collapsed": float(self.watch.collapsed_at > 0),
        }

    # ---- Evaluation

    def evaluator(self) -> Evaluator:
        return NeighbourEvaluator(self)

    # ---- What a person sees

    @classmethod
    def report_sections(cls, run: Any) -> Sequence[Any]:
        from ..analysis.report.sections.self_distillation import run_sections

        return run_sections(run)

    @classmethod
    def comparison_sections(cls, comparison: Any) -> Sequence[Any]:
        from ..analysis.report.sections.self_distillation import comparison_sections

        return comparison_sections(comparison)


def views_of(data: DataSet, options: DinoOptions) -> tuple[View, ...]:
    """The views that the options ask for."""
    local = options.local_size
    size = (data.image_size[0] // 2, data.image_size[1] // 2) if local is None else (local, local)
    default = [0.4, 1.0] if options.local_crops else [0.14, 1.0]
    scales = {"global_scale": options.global_scale or default, "local_scale": list(options.local_scale)}
    for name, scale in scales.items():
        if len(scale) != 2 or not 0 < scale[0] <= scale[1]:
            raise ValueError(f"task.{name}={scale}: two parts of the area, the smaller first, such as 0.4,1")
    large, small = ((scale[0], scale[1]) for scale in scales.values())
    return dino_views(data.image_size, size, options.local_crops, large, small)


def feature_size(model: nn.Module) -> int:
    """Channels of the features of a model without a classifier."""
    size = getattr(model, "num_features", None)
    if not isinstance(size, int):
        raise ValueError(f"dino needs a model that tells how many features it has (num_features), not {type(model).__name__}")
    return size


def _wide(logits: Tensor) -> Tensor:
    """At least float32, also under autocast."""
    return logits if logits.dtype == torch.float64 else logits.float()
