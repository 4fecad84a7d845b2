"""policy.json without torch: at which exit of a cascade an image may stop. The same rule as `models.cascade.policy`."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from ...common.files import read_json

POLICY = "policy.json"
Array = NDArray[np.floating]


def softmax(logits: Array) -> Array:
    """(b, classes) -> (b, classes)"""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _margin(p: Array) -> Array:
    second, first = np.partition(p, -2, -1)[:, -2:].T
    return first - second


def _entropy(p: Array) -> Array:
    nats = -np.where(p == 0, 0, p * np.log(np.where(p == 0, 1, p))).sum(-1)  # NaN stays NaN, and nobody leaves
    return np.maximum(1 - nats / math.log(p.shape[-1]), 0)


CONFIDENCES: dict[str, Callable[[Array], Array]] = {"max_softmax": lambda p: p.max(-1), "margin": _margin, "entropy": _entropy}


class StoredRule(TypedDict):
    """The part of policy.json that decides."""

    thresholds: list[float | None]
    confidence_kind: Literal["max_softmax", "margin", "entropy"]


@dataclass(frozen=True)
class ExitRule:
    """One threshold for each exit; the last exit always answers."""

    thresholds: tuple[float, ...]
    kind: str

    @classmethod
    def read(cls, path: Path) -> "ExitRule":
        plain = read_json(path, StoredRule)
        return cls(tuple(-math.inf if value is None else value for value in plain["thresholds"]), plain["confidence_kind"])

    def confidence(self, logits: Array) -> Array:
        """(b, classes) -> (b,)"""
        return CONFIDENCES[self.kind](softmax(logits))

    def leaves(self, logits: Array, exit: int) -> NDArray[np.bool_]:
        """(b, classes) of exit number `exit`, from 0 -> (b,)"""
        if exit == len(self.thresholds) - 1:
            return np.ones(len(logits), bool)
        return np.asarray(self.confidence(logits) >= self.thresholds[exit])
