"""A number that models are judged by, and how a person reads it. Stored with every result, so that pages need no task."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

NOTHING = "–"


@dataclass(frozen=True)
class Metric:
    """One result of an evaluation.

    Attributes:
        name: its key among the results, such as top1.
        label: what a person reads, such as top-1.
        better: which direction is better.
        percent: it is a fraction and shown as a percentage; differences are percentage points.
        digits: behind the point when it is shown.
    """

    name: str
    label: str
    better: Literal["larger", "smaller"] = "larger"
    percent: bool = False
    digits: int = 2

    @property
    def factor(self) -> int:
        """From the stored number to the shown one."""
        return 100 if self.percent else 1

    @property
    def heading(self) -> str:
        """For a column or an axis, with its unit."""
        return f"{self.label}, %" if self.percent else self.label

    def number(self, value: float | None) -> str:
        """The value below its `heading`, without a unit."""
        return NOTHING if value is None else f"{self.factor * value:.{self.digits}f}"

    def text(self, value: float | None) -> str:
        """The value by itself.

        >>> Metric("top1", "top-1", percent=True).text(0.9612)
        '96.12%'
        """
        return self.number(value) + ("%" if self.percent and value is not None else "")

    def improves(self, value: float, best: float | None) -> bool:
        """Whether `value` is better than the best so far. A value that is not finite is never better."""
        if not math.isfinite(value):
            return False
        return best is None or (value > best if self.better == "larger" else value < best)

    def best(self, values: Mapping[Any, float]) -> Any:
        """The key of the best of some values. One that is not finite is the best only among such."""
        finite = {key: value for key, value in values.items() if math.isfinite(value)} or values
        return (max if self.better == "larger" else min)(finite, key=lambda key: finite[key])

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
