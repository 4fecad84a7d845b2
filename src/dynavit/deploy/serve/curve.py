"""The calibration curve: thresholds from cheap to dear with what they cost and reach, and how a budget picks from it."""

import bisect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from .budget import Budget, BudgetError

EVERYONE, NOBODY = 0.0, 1e8  # thresholds that every confidence reaches and none; JSON has no infinity
Seconds = Callable[[int, int], float]  # (exit from 1, batch) -> seconds of a step
EPSILON = 1e-12  # of GMACs: sums of shares are not exact


@dataclass(frozen=True)
class Point:
    """Thresholds (exits - 1,) and what they gave on the calibration set; None: not known.

    `shares` (exits,) of the images leave at each exit; `accuracy_ci` is a 95 % interval.
    """

    thresholds: tuple[float, ...]
    gmacs: float | None = None
    accuracy: float | None = None
    accuracy_ci: tuple[float, float] | None = None
    shares: tuple[float, ...] | None = None

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "thresholds": list(self.thresholds),
            "gmacs": self.gmacs,
            "accuracy": self.accuracy,
            "accuracy_ci": self.accuracy_ci and list(self.accuracy_ci),
            "shares": self.shares and list(self.shares),
        }


@dataclass(frozen=True)
class Applied:
    """A budget as the scheduler uses it. `shares` of images are expected to leave at each exit; None: not known."""

    thresholds: tuple[float, ...]
    max_exit: int
    expected_gmacs: float | None = None
    expected_accuracy: float | None = None
    clipped: bool = False
    shares: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Curve:
    """Points along which no threshold falls, so that with more budget no image leaves earlier.

    Attributes:
        points: from cheap to dear. Without calibration one for each exit: all images leave there.
        cumulative_gmacs: cost of an image that leaves at each exit; None: not known.
        default: the thresholds of a request that names no target.
        calibrated: whether the points come from data.
        ends: the first and the last point that may be used (`within`).
    """

    points: tuple[Point, ...]
    cumulative_gmacs: tuple[float | None, ...]
    default: Point
    calibrated: bool = True
    ends: tuple[int, int] | None = field(default=None)

    @classmethod
    def uncalibrated(cls, cumulative_gmacs: Sequence[float | None], default: Point | None = None) -> "Curve":
        """The knob reduced to the deepest exit: "all leave at exit 1", ..., "all at the last"."""
        exits, points = len(cumulative_gmacs), []
        for leave in range(exits):
            thresholds = tuple(NOBODY if k < leave else EVERYONE for k in range(exits - 1))
            points.append(Point(thresholds, cumulative_gmacs[leave], shares=tuple(float(k == leave) for k in range(exits))))
        return cls(tuple(points), tuple(cumulative_gmacs), default or points[-1], calibrated=False)

    @classmethod
    def from_points(
        cls, points: Iterable[Point], cumulative_gmacs: Sequence[float | None], default: Point | None = None
    ) -> "tuple[Curve, list[str]]":
        """The curve, and notes about what was wrong with the points.

        A point with a threshold below one of a cheaper point would let an image leave earlier for more budget. Raised to the
        running maximum its numbers would no longer be its own, and there are no data here to find them anew, so it is left out.
        """
        given = sorted(map(_clamped, points), key=lambda point: math.inf if point.gmacs is None else point.gmacs)
        kept: list[Point] = []
        for point in given:
            if not kept or _rises(kept[-1], point):
                kept.append(point)
        notes = []
        if len(kept) < len(given):
            notes.append(
                f"{len(given) - len(kept)} of {len(given)} calibration points have thresholds that fall with more budget and "
                "were left out; `dynavit calibrate judge RUN` repairs and evaluates them anew"
            )
        if not kept or not kept[0].thresholds:
            return cls.uncalibrated(cumulative_gmacs, default and _clamped(default)), notes
        first, *_, last = cls.uncalibrated(cumulative_gmacs).points  # the two ends of every curve
        kept = [*[first] * (kept[0].thresholds != first.thresholds), *kept, *[last] * (kept[-1].thresholds != last.thresholds)]
        start = kept[-1] if default is None else _clamped(default)
        place = sum(point.gmacs is not None and start.gmacs is not None and point.gmacs <= start.gmacs for point in kept)
        around = [*kept[:place][-1:], start, *kept[place:][:1]]
        if start not in kept and all(_rises(*pair) for pair in pairwise(around)):
            kept.insert(place, start)  # so that the default is a position of the slider
        return cls(tuple(kept), tuple(cumulative_gmacs), start), notes

    @property
    def exits(self) -> int:
        return len(self.cumulative_gmacs)

    @property
    def monotone(self) -> bool:
        return all(_rises(*pair) for pair in pairwise(self.points))

    def level_of(self, index: int) -> float:
        """The level of a point, from 0 to 1."""
        return index / (len(self.points) - 1) if len(self.points) > 1 else 1.0

    def within(self, low: Budget | None, high: Budget | None, seconds: Seconds | None = None) -> "Curve":
        """The curve clipped to what the operator allows; both are targets on it."""
        first = 0 if low is None or low.target is None else self._index(low, seconds)
        last = len(self.points) - 1 if high is None or high.target is None else self._index(high, seconds)
        if first > last:
            raise BudgetError(
                f"the range of budgets is empty: its lower end is point {first} of the curve, its upper end {last}"
            )
        return replace(self, ends=(first, last))

    def apply(self, budget: Budget, seconds: Seconds | None = None) -> Applied:
        """The thresholds and the deepest exit for a budget.

        Args:
            seconds: measured cost of a step, for latency_ms.

        Raises:
            BudgetError: it cannot be met; `reachable` says what can.
        """
        point, clipped = self._clipped(self._chosen(budget, seconds))
        cap = self._cap(budget)
        shares = point.shares and _capped(point.shares, cap)
        untouched = cap == self.exits or (point.shares is not None and sum(point.shares[cap:]) == 0)
        return Applied(
            point.thresholds,
            cap,
            point.gmacs if untouched else _mean(shares, self.cumulative_gmacs),
            point.accuracy if untouched else None,  # of images that the limit stops nobody measured it
            clipped,
            shares,
        )

    # ---- Targets

    def _chosen(self, budget: Budget, seconds: Seconds | None) -> Point:
        if budget.target is None:
            return self.default
        if budget.thresholds is not None:
            return self._by_thresholds(budget.thresholds)
        return self.points[self._index(budget, seconds)]

    def _index(self, budget: Budget, seconds: Seconds | None) -> int:
        """The point that meets a target."""
        if budget.level is not None:
            return round(budget.level * (len(self.points) - 1))
        if budget.accuracy is not None:
            return self._cheapest("accuracy", budget.accuracy, [point.accuracy for point in self.points])
        if budget.gmacs is not None:
            return self._dearest("gmacs", budget.gmacs, [point.gmacs for point in self.points])
        if budget.latency_ms is not None:
            if seconds is None:
                raise BudgetError("latency_ms needs measured costs, and there are none; use gmacs or level")
            steps = [1e3 * seconds(exit, 1) for exit in range(1, self.exits + 1)]
            spent = [sum(steps[: exit + 1]) for exit in range(self.exits)]
            return self._dearest("latency_ms", budget.latency_ms, [_mean(point.shares, spent) for point in self.points])
        raise BudgetError("a range of budgets goes from one level, gmacs, accuracy or latency_ms to another")

    def _cheapest(self, name: str, at_least: float, values: Sequence[float | None]) -> int:
        known = [value for value in values if value is not None]
        if not known:
            raise BudgetError(f"{name} cannot be asked for: the model was not calibrated (dynavit calibrate)")
        for index, value in enumerate(values):
            if value is not None and value >= at_least:
                return index
        raise BudgetError(
            f"no thresholds reach {name}={at_least:g} on the calibration set: the best is {max(known):.4g}",
            {name: _ends(known)},
        )

    def _dearest(self, name: str, at_most: float, values: Sequence[float | None]) -> int:
        known = [value for value in values if value is not None]
        if not known:
            raise BudgetError(
                f"{name} cannot be asked for: what the exits cost is not known; use level, max_exit or deadline_ms"
            )
        fits = [index for index, value in enumerate(values) if value is not None and value <= at_most + EPSILON]
        if not fits:
            raise BudgetError(
                f"no thresholds cost at most {name}={at_most:g}: the least is {min(known):.4g}", {name: _ends(known)}
            )
        return fits[-1]

    def _by_thresholds(self, thresholds: tuple[float, ...]) -> Point:
        if len(thresholds) != self.exits - 1 or not all(map(math.isfinite, thresholds)):
            raise BudgetError(
                f"thresholds has a finite number for each exit but the last, so {self.exits - 1}; got {list(thresholds)}"
            )
        given = _clamped(Point(thresholds))
        return next((point for point in self.points if point.thresholds == given.thresholds), given)

    def _clipped(self, point: Point) -> tuple[Point, bool]:
        """Inside the operator's range, and whether that changed it."""
        if self.ends is None:
            return point, False
        low, high = (self.points[end] for end in self.ends)
        inside = tuple(
            min(max(mine, least), most)
            for mine, least, most in zip(point.thresholds, low.thresholds, high.thresholds, strict=True)
        )
        if inside == point.thresholds:
            return point, False
        return next((known for known in self.points if known.thresholds == inside), Point(inside)), True

    # ---- Limits

    def _cap(self, budget: Budget) -> int:
        """The deepest exit that the limits allow."""
        cap = self.exits
        if budget.max_exit is not None:
            if budget.max_exit > self.exits:
                raise BudgetError(
                    f"max_exit={budget.max_exit}: the model has {self.exits} exits", {"max_exit": [1, self.exits]}
                )
            cap = budget.max_exit
        if budget.max_gmacs is not None:
            costs = [cost for cost in self.cumulative_gmacs if cost is not None]
            if len(costs) < self.exits:
                raise BudgetError(
                    "max_gmacs cannot be asked for: what the exits cost is not known; use max_exit or deadline_ms"
                )
            allowed = bisect.bisect_right(costs, budget.max_gmacs + EPSILON)
            if not allowed:
                raise BudgetError(
                    f"max_gmacs={budget.max_gmacs:g}: even exit 1 costs {costs[0]:.4g} GMACs",
                    {"max_gmacs": [costs[0], costs[-1]]},
                )
            cap = min(cap, allowed)
        return cap


def read_point(plain: Mapping[str, Any], exits: int, samples: int | None = None) -> Point:
    """A point as it is stored, whose thresholds may include the last exit's; null is a threshold that everyone reaches."""
    stored = [-math.inf if value is None else float(value) for value in plain["thresholds"]]
    if len(stored) not in (exits - 1, exits):
        raise ValueError(f"a calibration point has {len(stored)} thresholds, the model has {exits} exits; calibrate it anew")
    accuracy, shares = plain.get("accuracy"), plain.get("shares")
    interval = plain.get("accuracy_ci") or (wilson(accuracy, samples) if accuracy is not None and samples else None)
    return Point(
        tuple(stored[: exits - 1]),
        plain.get("gmacs"),
        accuracy,
        interval and (float(interval[0]), float(interval[1])),
        shares and tuple(map(float, shares)),
    )


def wilson(share: float, n: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % interval of a share that was counted on n images (Wilson 1927).

    >>> [round(end, 3) for end in wilson(0.9, 100)]
    [0.826, 0.945]
    """
    middle, spread = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, (middle - spread) / (1 + z * z / n)), min(1.0, (middle + spread) / (1 + z * z / n))


def _clamped(point: Point) -> Point:
    return replace(point, thresholds=tuple(min(max(value, EVERYONE), NOBODY) for value in point.thresholds))


def _rises(cheaper: Point, dearer: Point) -> bool:
    return all(low <= high for low, high in zip(cheaper.thresholds, dearer.thresholds, strict=True))


def _capped(shares: Sequence[float], cap: int) -> tuple[float, ...]:
    """Shares when whoever would go beyond the cap leaves there."""
    return (*shares[: cap - 1], sum(shares[cap - 1 :]), *(0.0,) * (len(shares) - cap))


def _mean(shares: Sequence[float] | None, costs: Sequence[float | None]) -> float | None:
    if shares is None or any(cost is None for share, cost in zip(shares, costs, strict=True) if share):
        return None
    return sum(share * cost for share, cost in zip(shares, costs, strict=True) if cost is not None)


def _ends(values: Sequence[float]) -> list[float]:
    return [min(values), max(values)]
