"""Watch over collapse: codes of the last images, summed in windows of at least 512, and a detector that looks at each window.

A window holds sums, never codes, so that processes can add theirs and a checkpoint can hold it.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..analysis.measures.collapse import code_measures, effective_rank
from .self_distillation import entropy

WINDOW = 512  # codes, at least
ARMED_AT = 0.5  # nats of information, or
ARMED_AFTER = 0.2  # this part of the training: at the start codes tell little
LEAST_SHARE = 0.05  # of the information there could be
LEAST_RANK = 2.0
IN_A_ROW = 3  # windows

HINTS = (
    "what helped others: sharper targets (--task.teacher_temperature 0.02), fewer prototypes (--task.prototypes), another "
    "pace of the teacher (--task.momentum 0.99 or 0.996), prototypes frozen for longer (--task.freeze_epochs)"
)


class Sums(NamedTuple):
    """Sums over codes: the codes (k,), their entropies (), how often each prototype is the largest (k,), outer products of the
    normalised features (c, c), and the number of codes ()."""

    codes: Tensor
    entropies: Tensor
    largest: Tensor
    gram: Tensor
    codes_seen: Tensor

    @classmethod
    def of(cls, codes: Tensor, features: Tensor) -> "Sums":
        """Of codes (n, k) and features (n, c)."""
        largest = F.one_hot(codes.argmax(-1), codes.shape[-1]).sum(0) if len(codes) else torch.zeros_like(codes[0:].sum(0))
        unit = F.normalize(features.to(codes.dtype), dim=-1)
        count = codes.new_tensor(float(len(codes)))
        return cls(codes.sum(0), entropy(codes).sum(), largest.to(codes.dtype), unit.mT @ unit, count)

    def plus(self, other: "Sums") -> "Sums":
        return Sums(*(own + more for own, more in zip(self, other, strict=True)))


class CollapseWatch(nn.Module):
    """Sums of the current window, the measures of the last complete one, and the detector's state; all part of checkpoints.

    Attributes:
        measures: of the last window; {} before the first.
    """

    NAMES = ("code_entropy", "mean_code_entropy", "information", "information_share", "effective_rank", "prototypes_used")
    window_codes: Tensor
    window_entropies: Tensor
    window_largest: Tensor
    window_gram: Tensor
    window_count: Tensor
    last: Tensor
    detector: Tensor

    def __init__(self, dim: int, prototypes: int) -> None:
        super().__init__()
        shapes = {"codes": (prototypes,), "entropies": (), "largest": (prototypes,), "gram": (dim, dim), "count": ()}
        for name, shape in shapes.items():
            self.register_buffer(f"window_{name}", torch.zeros(shape))
        self.register_buffer("last", torch.full((len(self.NAMES),), math.nan))
        self.register_buffer("detector", torch.zeros(3, dtype=torch.int64))  # armed, bad windows in a row, step of the collapse

    @property
    def window(self) -> Sums:
        return Sums(self.window_codes, self.window_entropies, self.window_largest, self.window_gram, self.window_count)

    @property
    def measures(self) -> dict[str, float]:
        numbers = self.last.tolist()
        return {} if math.isnan(numbers[0]) else dict(zip(self.NAMES, numbers, strict=True))

    @property
    def collapsed_at(self) -> int:
        """The step at which it was seen; 0 if it was not."""
        return int(self.detector[2])

    @torch.no_grad()
    def add(self, sums: Sums) -> None:
        """The codes of a step, of all processes."""
        for own, more in zip(self.window, sums, strict=True):
            own.add_(more)

    @torch.no_grad()
    def close(self, step: int, total: int) -> str | None:
        """End the window after step number `step`, counted from 0. If that shows a collapse for the first time: a sentence."""
        window = self.window
        count = float(window.codes_seen)
        found = code_measures(window.codes, window.entropies, count)
        found["effective_rank"] = effective_rank(window.gram)
        found["prototypes_used"] = float((window.largest > 0).sum())
        self.last.copy_(torch.tensor([found[name] for name in self.NAMES]))
        for own in window:
            own.zero_()
        armed, row, seen = self.detector.tolist()
        armed = int(armed or found["information"] > ARMED_AT or step + 1 >= ARMED_AFTER * total)
        bad = found["information_share"] < LEAST_SHARE or found["effective_rank"] < LEAST_RANK
        row = row + 1 if armed and bad else 0
        fires = row >= IN_A_ROW and not seen
        self.detector.copy_(torch.tensor([armed, row, step + 1 if fires else seen]))
        return self._sentence(step + 1, found) if fires else None

    def _sentence(self, step: int, found: dict[str, float]) -> str:
        prototypes = self.window_codes.numel()
        kind = "uniform" if found["code_entropy"] > 0.5 * math.log(prototypes) else "one-prototype"
        if found["information_share"] >= LEAST_SHARE:
            kind = "dimensional"
        meaning = {
            "uniform": "every image gets the same even code",
            "one-prototype": "every image gets the same few prototypes",
            "dimensional": "features of all images lie along one direction",
        }[kind]
        return (
            f"collapse ({kind}) seen at step {step}: {meaning}. Codes carry {found['information']:.2f} nats about their image "
            f"(entropy {found['code_entropy']:.2f} of ln {prototypes} = {math.log(prototypes):.2f}), features have an "
            f"effective rank of {found['effective_rank']:.1f}; {HINTS}"
        )
