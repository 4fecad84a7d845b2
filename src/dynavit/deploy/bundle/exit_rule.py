"""policy.json without torch: at which exit of a cascade an image may stop. The same rule as `models.cascade.policy`."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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


@dataclass(frozen=True)
class ExitRule:
    """One threshold for each exit; the last exit always answers."""

    thresholds: tuple[float, ...]
    kind: str

    @classmethod
    def read(cls, path: Path) -> "ExitRule":
        try:
            plain = json.loads(path.read_text())
            thresholds = tuple(-math.inf if value is None else float(value) for value in plain["thresholds"])
            kind = str(plain["confidence_kind"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not an exit policy ({type(error).__name__}: {error})") from error
        if kind not in CONFIDENCES:
            raise ValueError(f"{path} asks for the confidence {kind!r}; known are {', '.join(CONFIDENCES)}")
        return cls(thresholds, kind)

    def confidence(self, logits: Array) -> Array:
        """(b, classes) -> (b,)"""
        return CONFIDENCES[self.kind](softmax(logits))

    def leaves(self, logits: Array, exit: int) -> NDArray[np.bool_]:
        """(b, classes) of exit number `exit`, from 0 -> (b,)"""
        if exit == len(self.thresholds) - 1:
            return np.ones(len(logits), bool)
        return np.asarray(self.confidence(logits) >= self.thresholds[exit])
