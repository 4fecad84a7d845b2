"""Thresholds for a cascade, found on labelled images from the confidence of each exit and whether it was right.

Arrays everywhere: `conf` (exits, n) confidences, `correct` (exits, n) bool, `cost` (exits,) the cost of an image that leaves at
an exit, with all exits before, in any unit: GMACs, milliseconds.

There are two ways. `released_thresholds` is the DVT release's: a grid of exit shares. `trade_off` searches accuracy and cost
directly, and orders its answers: with more budget no image, seen or unseen, leaves earlier.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ...common.right import is_right
from .policy import EVERYONE, NOBODY, confidence

Array = NDArray[Any]

PRICES = 64  # prices of cost that the search stops at
POINTS = 1024  # points of the curve, at most


def scores(batches: Iterable[tuple[Sequence[Tensor], Tensor]], kind: str = "max_softmax") -> tuple[Array, Array]:
    """Batches of (logits of each exit, each (b, classes); targets (b,)) -> conf (exits, n), correct (exits, n).

    The batches may be a generator: of each image only two numbers per exit are kept.
    """
    conf, correct = [], []
    for logits, targets in batches:
        conf.append(torch.stack([confidence(exit, kind) for exit in logits]).detach().cpu())
        correct.append(torch.stack([is_right(exit, targets) for exit in logits]).cpu())
    if not conf:
        raise ValueError("there are no images to find thresholds on")
    return torch.cat(conf, 1).numpy(), torch.cat(correct, 1).numpy()


@dataclass(frozen=True)
class Point:
    """Thresholds (exits,) and their result: accuracy, mean cost per image, shares (exits,) of the images at each exit."""

    thresholds: tuple[float, ...]
    accuracy: float
    cost: float
    shares: tuple[float, ...]


@dataclass(frozen=True)
class ThresholdCurve:
    """Many points: thresholds (points, exits), accuracy (points,), cost (points,), shares (points, exits)."""

    thresholds: Array
    accuracy: Array
    cost: Array
    shares: Array

    def __len__(self) -> int:
        return len(self.cost)

    def __getitem__(self, i: int) -> Point:
        thresholds, shares = self.thresholds[i].tolist(), self.shares[i].tolist()
        return Point(tuple(thresholds), float(self.accuracy[i]), float(self.cost[i]), tuple(shares))

    def for_budget(self, budget: float) -> Point:
        """The most accurate point that costs at most `budget` per image, on average; the cheapest of several."""
        if not (affordable := self.cost <= budget).any():
            raise ValueError(f"no thresholds cost at most {budget:g} per image: the least possible is {self.cost.min():g}")
        best = self.accuracy[affordable].max()
        return self._cheapest(affordable & (self.accuracy == best))

    def for_accuracy(self, at_least: float) -> Point:
        """The cheapest point with at least this accuracy, a fraction."""
        if not (good := self.accuracy >= at_least).any():
            raise ValueError(
                f"no thresholds reach an accuracy of {at_least:g} on these images: the best is {self.accuracy.max():g}"
            )
        return self._cheapest(good)

    def _cheapest(self, among: Array) -> Point:
        return self[int(np.where(among, self.cost, np.inf).argmin())]


def simulate(conf: ArrayLike, correct: ArrayLike, cost: ArrayLike, thresholds: ArrayLike) -> ThresholdCurve:
    """The result of thresholds (points, exits) on these images. The last exit answers for all that reach it."""
    conf, correct, cost = _checked(conf, correct, cost)
    thresholds = np.atleast_2d(thresholds)
    exits, n = conf.shape
    if thresholds.shape[1] != exits or np.isnan(thresholds).any():
        raise ValueError(f"{exits} exits need rows of {exits} thresholds, none of them NaN; got an array {thresholds.shape}")
    left, right = np.zeros(thresholds.shape, np.int64), np.zeros(thresholds.shape, np.int64)
    for point, row in enumerate(thresholds):
        inside = np.ones(n, bool)
        for k in range(exits):
            leaving = inside & (conf[k] >= row[k]) if k < exits - 1 else inside
            left[point, k] = np.count_nonzero(leaving)
            right[point, k] = np.count_nonzero(leaving & correct[k])
            inside = inside & ~leaving
    shares = left / n
    return ThresholdCurve(thresholds, right.sum(1) / n, (shares * cost).sum(1), shares)


def released_thresholds(conf: ArrayLike, p_grid: Sequence[int] = range(1, 60)) -> Array:
    """The search of the DVT release: (len(p_grid), exits), in conf's precision.

    With q = p / 20, a share q^k / (q + q^2 + ...) of all images shall leave at exit k = 1, 2, ... So its threshold is the
    confidence of the last of that many among those still inside, surest first; equally sure ones leave too. Where the number is
    zero or exceeds what is left, nobody leaves.
    """
    conf = _numbers(conf)
    exits, n = conf.shape
    thresholds = np.full((len(p_grid), exits), NOBODY, conf.dtype)
    thresholds[:, -1] = -NOBODY
    for row, p in zip(thresholds, p_grid, strict=True):
        powers = np.float32(p / 20) ** np.arange(1, exits + 1, dtype=np.float32)
        inside = np.ones(n, bool)
        for k, share in enumerate((powers / powers.sum())[:-1]):
            number, candidates = int(np.floor(n * share)), conf[k, inside]
            if 0 < number <= len(candidates):
                row[k] = np.partition(candidates, -number)[-number]
                inside &= conf[k] < row[k]
    return thresholds


def trade_off(conf: ArrayLike, correct: ArrayLike, cost: ArrayLike) -> ThresholdCurve:
    """Points from "everyone leaves at the first exit" to "everyone at the last", along which no threshold ever falls.

    Put a price on cost: an image is worth [it is right] - price * cost. For one price the best thresholds follow by backward
    induction, as in optimal stopping. At the last exit but one take the threshold with the largest sum of the worth of images
    that leave, and of the worth that the others will have at the last. Then, knowing the worth of going on, the exit before it;
    and so on. As the price falls, going on pays for more images, so thresholds rise; where noise would let one fall, it stays.
    Between two prices all thresholds rise in step, in ranks of confidence.

    Each exit is judged on all images, not only on those that earlier ones would let through. That needs no iteration, and the
    search of all combinations, whose answers are not ordered by budget, gains about 0.2 points of accuracy over it on the same
    images (made-up ones, 40 to 400 of them, three exits, mean over budgets).
    """
    conf, correct, cost = _checked(conf, correct, cost)
    exits = len(conf)
    # With cut c, images leave an exit unless they are among its c lowest levels of confidence. Equally sure ones share a level.
    levels, level_of = zip(*(np.unique(row, return_inverse=True) for row in conf), strict=True)
    cuts = np.zeros((PRICES + 3, exits - 1), np.int64)
    cuts[-1] = [len(level) for level in levels[:-1]]
    dearest = 1 / np.diff(cost, prepend=0).min()  # one more right answer is just worth one more exit
    for row, price in enumerate([*np.geomspace(dearest, 1e-4 * dearest, PRICES), 0], start=1):
        later = correct[-1] - price * cost[-1]
        for k in reversed(range(exits - 1)):
            now = correct[k] - price * cost[k]
            gain = np.append(0, np.bincount(level_of[k], later - now).cumsum())  # of cuts 0, 1, 2, ...
            lowest = cuts[row - 1, k]
            cuts[row, k] = lowest + gain[lowest:].argmax()
            later = np.where(level_of[k] < cuts[row, k], later, now)

    travelled = np.append(0, np.diff(cuts, axis=0).sum(1).cumsum())
    stops = np.linspace(0, travelled[-1], min(POINTS, travelled[-1] + 1))
    thresholds = np.full((len(stops), exits), EVERYONE)
    for k in range(exits - 1):
        cut = np.interp(stops, travelled, cuts[:, k]).round().astype(np.int64)
        # Halfway between two levels, so that rounding in another batch size moves no image across. If there is no number in
        # between, the upper one, since images at the threshold leave.
        lower, upper = levels[k][:-1], levels[k][1:]
        halfway = (lower + upper) / 2
        thresholds[:, k] = np.concatenate([[EVERYONE], np.where(halfway > lower, halfway, upper), [NOBODY]])[cut]
    return simulate(conf, correct, cost, thresholds)


def _numbers(conf: ArrayLike) -> Array:
    conf = np.asarray(conf)
    if conf.ndim != 2 or conf.size == 0:
        raise ValueError(f"confidences are an array (exits, n), got {conf.shape}")
    if unknown := int((~np.isfinite(conf)).sum()):
        raise ValueError(
            f"{unknown} of {conf.size} confidences are NaN or infinite, so there are no thresholds for them: the "
            "model's logits are not finite, it has diverged"
        )
    return conf


def _checked(conf: ArrayLike, correct: ArrayLike, cost: ArrayLike) -> tuple[Array, Array, Array]:
    conf, correct, cost = _numbers(conf), np.asarray(correct), np.asarray(cost, np.float64)
    if correct.shape != conf.shape or correct.dtype != bool:
        raise ValueError(f"`correct` is bool, {conf.shape} like the confidences; got {correct.dtype}, {correct.shape}")
    if cost.shape != conf.shape[:1] or not (np.diff(cost, prepend=0) > 0).all():
        raise ValueError(f"{len(conf)} exits need as many costs, each with those before, so increasing; got {cost.tolist()}")
    return conf, correct, cost
