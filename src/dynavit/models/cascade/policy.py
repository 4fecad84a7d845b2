"""The rule by which images leave a cascade: thresholds of confidence, with the costs and accuracies they were found by."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, NotRequired, TypedDict

import torch
from torch import Tensor

from ...common.fits import AtLeastOne, check_fits
from ...common.registry import nearest_match_error

EVERYONE = -math.inf  # threshold at which every image leaves
NOBODY = 1e8  # threshold at which none does, since no confidence is above 1. The release's number; JSON has no infinity.


def max_softmax(logits: Tensor) -> Tensor:
    """The largest probability."""
    return logits.softmax(-1).amax(-1)


def margin(logits: Tensor) -> Tensor:
    """The largest probability minus the second largest."""
    first, second = logits.softmax(-1).topk(2, -1).values.unbind(-1)
    return first - second


def entropy(logits: Tensor) -> Tensor:
    """1 - H / log(classes): 0 where all classes are equally probable, 1 where one is certain."""
    entropies = torch.special.entr(logits.softmax(-1)).sum(-1)
    return (1 - entropies / math.log(logits.shape[-1])).clamp_min(0)  # rounding may leave -1e-8


CONFIDENCES: dict[str, Callable[[Tensor], Tensor]] = {"max_softmax": max_softmax, "margin": margin, "entropy": entropy}
ConfidenceKind = Literal["max_softmax", "margin", "entropy"]


def confidence(logits: Tensor, kind: str = "max_softmax") -> Tensor:
    """(b, classes) -> (b,) in [0, 1]; in float32 at least, for half precision rounds many images to the same number."""
    if kind not in CONFIDENCES:
        raise nearest_match_error("confidence", kind, CONFIDENCES)
    return CONFIDENCES[kind](logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits)


@dataclass(frozen=True)
class FoundOn:
    """The images that thresholds were found on: so many samples of a split, drawn with a seed."""

    data: str
    split: str
    seed: int
    samples: int


class StoredPolicy(TypedDict):
    """The fields of a policy as JSON: null is a threshold of -inf, or what is not known."""

    thresholds: list[float | None]
    confidence_kind: NotRequired[str]
    gmacs: NotRequired[list[float] | None]
    milliseconds: NotRequired[list[float] | None]
    batch_size: NotRequired[AtLeastOne | None]
    accuracy: NotRequired[list[float] | None]
    shares: NotRequired[list[float] | None]
    expected_accuracy: NotRequired[float | None]
    found_on: NotRequired[FoundOn | None]
    found_by: NotRequired[str]


@dataclass(frozen=True)
class ExitPolicy:
    """Thresholds of a cascade's exits, coarse to fine. An image leaves at the first exit whose confidence is at least its own.

    Attributes:
        thresholds: one per exit. The last is -inf, because the last exit always answers; any negative number is read as -inf.
        confidence_kind: "max_softmax", "margin" or "entropy".
        gmacs: cost of an image that leaves at each exit, with all exits before.
        milliseconds: the same, measured at `batch_size`, per image.
        accuracy: of each exit, if all images left there.
        shares: of the images, leaving at each exit.
        expected_accuracy: of the cascade with these thresholds.
        found_on: the images on which thresholds, accuracies and shares were found.
        found_by: the goal that was asked for, in words.
    """

    thresholds: tuple[float, ...]
    confidence_kind: ConfidenceKind = "max_softmax"
    gmacs: tuple[float, ...] | None = None
    milliseconds: tuple[float, ...] | None = None
    batch_size: int | None = None
    accuracy: tuple[float, ...] | None = None
    shares: tuple[float, ...] | None = None
    expected_accuracy: float | None = None
    found_on: FoundOn | None = None
    found_by: str = "by hand"

    def __post_init__(self) -> None:
        if self.confidence_kind not in CONFIDENCES:
            raise nearest_match_error("confidence", self.confidence_kind, CONFIDENCES)
        given = tuple(float(threshold) for threshold in self.thresholds)
        if not given:
            raise ValueError("a policy needs one threshold for each exit, got none")
        if any(math.isnan(threshold) or threshold == math.inf for threshold in given):
            raise ValueError(f"thresholds are numbers, above 1 ({NOBODY:.0e}, say) where no image shall leave; got {given}")
        if given[-1] >= 0:
            raise ValueError(f"every image leaves at the last exit, so its threshold is -inf; got {given}")
        object.__setattr__(self, "thresholds", (*given[:-1], EVERYONE))
        for name in ("gmacs", "milliseconds", "accuracy", "shares"):
            if (values := getattr(self, name)) is None:
                continue
            values = tuple(float(value) for value in values)
            if len(values) != self.exits or not all(map(math.isfinite, values)):
                raise ValueError(f"{name} has one finite number for each of the {self.exits} exits; got {values}")
            object.__setattr__(self, name, values)
        if (self.milliseconds is None) != (self.batch_size is None):
            raise ValueError("milliseconds mean something only with the batch size they were measured at; give both or none")

    @property
    def exits(self) -> int:
        return len(self.thresholds)

    def check_fits(self, exits: int) -> None:
        """Raise if a cascade with so many exits cannot use this policy."""
        if exits != self.exits:
            raise ValueError(f"the policy has thresholds for {self.exits} exits, the cascade has {exits}; calibrate it anew")

    def confidence(self, logits: Tensor) -> Tensor:
        """(b, classes) -> (b,)"""
        return confidence(logits, self.confidence_kind)

    def leaves(self, logits: Tensor, exit: int) -> Tensor:
        """True for images that leave: logits (b, classes) of the exit with index `exit`, from 0 -> (b,) bool."""
        if not 0 <= exit < self.exits:
            raise ValueError(f"there is no exit {exit + 1}: the policy knows exits 1 to {self.exits}")
        if exit == self.exits - 1:  # also where the logits are NaN
            return torch.ones(len(logits), dtype=torch.bool, device=logits.device)
        return self.satisfied(self.confidence(logits), exit)

    def satisfied(self, confidence: Tensor, exit: int) -> Tensor:
        """The same by confidence, for an exit that is not the last: (b,) -> (b,) bool. An image with NaN stays."""
        return confidence >= self.thresholds[exit]

    def expected_gmacs(self) -> float | None:
        """Per image, on average."""
        return _mean(self.shares, self.gmacs)

    def expected_milliseconds(self) -> float | None:
        """Per image, on average, if batches are full at every exit."""
        return _mean(self.shares, self.milliseconds)

    def to_json(self) -> str:
        """The fields; null is a threshold of -inf, or what is not known."""
        plain = asdict(self)
        plain["thresholds"] = [None if threshold == EVERYONE else threshold for threshold in self.thresholds]
        return json.dumps(plain, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "ExitPolicy":
        try:
            plain: dict[str, Any] = json.loads(text)
            check_fits(StoredPolicy, plain)
            plain["thresholds"] = [EVERYONE if threshold is None else threshold for threshold in plain["thresholds"]]
            if plain.get("found_on") is not None:
                plain["found_on"] = FoundOn(**plain["found_on"])
            return cls(**plain)
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"not an exit policy, or one of another version: {error}") from error


def _mean(shares: tuple[float, ...] | None, costs: tuple[float, ...] | None) -> float | None:
    if shares is None or costs is None:
        return None
    return sum(share * cost for share, cost in zip(shares, costs, strict=True))
