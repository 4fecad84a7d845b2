"""Mixup (Zhang et al., ICLR 2018, arXiv 1710.09412), CutMix (Yun et al., ICCV 2019, arXiv 1905.04899) and label smoothing.

Sample i is mixed with its mirror image in the batch, sample b - 1 - i, all with the same λ, as timm does by default:

    mixup    x' = λ x + (1 - λ) x.flip(0)          λ ~ Beta(α, α)
    cutmix   a box of area 1 - λ comes from x.flip(0); λ is then corrected to what the border left of the box
    targets  y' = λ y + (1 - λ) y.flip(0)          y smoothed: s / K everywhere, and 1 - s more for the right class

With both, one of the two is chosen for each batch, each as likely. Unlike timm's, this takes batches of odd size and leaves
numpy's global generator alone. Partners depend on how a step is cut into parts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..common.batch import Batch
from ..common.data import LoaderOptions
from .config import AugmentConfig
from .sampling import derive_seed


@dataclass(frozen=True)
class Mixer:
    """Turns class numbers into probabilities: `mixer(batch, epoch, step, part)`, where `part` counts the micro-batches of the
    whole step, over all processes. The same numbers always give the same λ and box."""

    classes: int
    augment: AugmentConfig
    seed: int

    def __post_init__(self) -> None:
        for name in ("mixup", "cutmix"):
            if (strength := getattr(self.augment, name)) < 0:
                raise ValueError(f"augment.{name}={strength}: a strength is not negative; 0 leaves it out")
        if not 0 <= (smoothing := self.augment.label_smoothing) < 1:
            raise ValueError(f"augment.label_smoothing={smoothing}: it is at least 0 and less than 1")

    @staticmethod
    def wanted(augment: AugmentConfig) -> bool:
        return any((augment.mixup, augment.cutmix, augment.label_smoothing))

    def __call__(self, batch: Batch, epoch: int, step: int, part: int) -> Batch:
        random = np.random.default_rng(derive_seed(self.seed, epoch, step, part))
        inputs, kept = batch.inputs, 1.0
        mixed = bool(self.augment.mixup or self.augment.cutmix)
        if mixed:
            cut, kept = draw_strength(self.augment, random)
            if cut:
                inputs, kept = cut_and_paste(inputs, kept, random)
            else:
                inputs = inputs * kept + inputs.flip(0) * (1 - kept)
        targets = smooth(batch.targets, self.classes, self.augment.label_smoothing, inputs.dtype)
        return replace(batch, inputs=inputs, targets=targets * kept + targets.flip(0) * (1 - kept), mixed=mixed)


def step_mixer(classes: int, how: LoaderOptions) -> Callable[[list[Batch], int, int], list[Batch]]:
    """(micro-batches of this process, epoch, step) -> the same, mixed if training asks for it."""
    if not (how.train and Mixer.wanted(how.augment)):
        return lambda batches, epoch, step: batches
    mixer = Mixer(classes, how.augment, how.seed)
    return lambda batches, epoch, step: [mixer(batch, epoch, step, i * how.world + how.rank) for i, batch in enumerate(batches)]


def draw_strength(augment: AugmentConfig, random: np.random.Generator) -> tuple[bool, float]:
    """(cutmix or mixup, λ)."""
    cut = random.random() < 0.5 if augment.mixup and augment.cutmix else augment.cutmix > 0
    alpha = augment.cutmix if cut else augment.mixup
    return cut, random.beta(alpha, alpha)


def cut_and_paste(inputs: Tensor, kept: float, random: np.random.Generator) -> tuple[Tensor, float]:
    """(b, c, h, w) images with a box of their partners, and the part of each image that is still its own."""
    height, width = inputs.shape[-2:]
    side = (1 - kept) ** 0.5
    top, bottom = _cut(height, int(height * side), random)
    left, right = _cut(width, int(width * side), random)
    pasted = inputs.clone()
    pasted[..., top:bottom, left:right] = inputs.flip(0)[..., top:bottom, left:right]
    return pasted, 1 - (bottom - top) * (right - left) / (height * width)


def smooth(labels: Tensor, classes: int, smoothing: float, dtype: torch.dtype) -> Tensor:
    """(b,) class numbers -> (b, classes) probabilities."""
    rest = smoothing / classes
    targets = torch.full((len(labels), classes), rest, dtype=dtype, device=labels.device)
    return targets.scatter_(1, labels[:, None], 1 - smoothing + rest)


def _cut(side: int, length: int, random: np.random.Generator) -> tuple[int, int]:
    """An interval of `length` around a random centre, as far as it lies inside."""
    centre = int(random.integers(side))
    return max(centre - length // 2, 0), min(centre + (length + 1) // 2, side)
