"""The report of a fold: the outcome for each norm, and the measured error."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

WIDE_SPREAD = 1e3


@dataclass
class FoldRow:
    """One norm."""

    path: str
    norm: str  # class name
    action: Literal["folded", "partly", "left"]
    into: list[str] = field(default_factory=list)  # the weights that took it up
    reason: str = ""  # why something of it stays
    one_size: bool = False  # at other input sizes the model may pad zeros that would miss its shift
    spread: float | None = None  # largest |scale| / median |scale| of the map


@dataclass
class FoldReport:
    """Rows in the order of the model's modules, and the errors that `verify_fold` has measured (None: not measured)."""

    rows: list[FoldRow] = field(default_factory=list)
    fused: list[str] = field(default_factory=list)  # modules that replaced themselves by their own fuse()
    frozen: list[str] = field(default_factory=list)  # DTNs that take one grid only
    only_shape: tuple[int, ...] | None = None  # of an input, without the batch; None: any that the model takes
    error: float | None = None  # of the folded model, relative to the largest value of that output
    own_error: float | None = None  # of the model itself, against its float64 run
    limit: float | None = None
    changed: int | None = None  # images with another class, all of them closer than twice the error

    def count(self, action: str) -> int:
        return sum(row.action == action for row in self.rows)

    @property
    def warnings(self) -> list[str]:
        """Maps so uneven that half precision and int8 will suffer; usually a channel that died in training."""
        return [
            f"{row.path}: its largest scale is {row.spread:.1e} times the median; half precision and int8 will suffer"
            for row in self.rows
            if row.spread is not None and row.spread > WIDE_SPREAD
        ]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        counts = {action: self.count(action) for action in ("folded", "partly", "left")}
        return {**counts, **asdict(self), "warnings": self.warnings}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "FoldReport":
        """The inverse of `to_dict`. What another version has written besides is ignored."""
        report = cls(**_known(cls, plain))
        report.rows = [FoldRow(**_known(FoldRow, row)) for row in plain["rows"]]
        report.only_shape = None if report.only_shape is None else tuple(report.only_shape)
        return report

    def __str__(self) -> str:
        names = [(row.path, row.norm, row.action) for row in self.rows]
        widths = [max((len(name[at]) for name in names), default=0) for at in range(3)]
        lines = [
            "  ".join(text.ljust(width) for text, width in zip(name, widths, strict=True))
            + (f"  into {', '.join(row.into)}" if row.into else "")
            + (f"  ({row.reason})" if row.reason else "")
            for name, row in zip(names, self.rows, strict=True)
        ]
        lines.append(f"{self.count('folded')} folded, {self.count('partly')} partly, {self.count('left')} left")
        if self.fused:
            lines.append(f"{len(self.fused)} fused by themselves: {', '.join(self.fused)}")
        if self.frozen:
            lines.append(f"{len(self.frozen)} frozen for one grid: {', '.join(self.frozen)}")
        if self.only_shape is not None:
            lines.append(f"for inputs of {'x'.join(map(str, self.only_shape))} only: the model pads by the size of its input")
        if self.error is not None and self.own_error is not None:
            lines.append(
                f"error {self.error:.1e} of the largest value (unfolded {self.own_error:.1e}, allowed {self.limit:.1e}), "
                "both against the unfolded model in float64"
            )
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])


def _known(kind: type[FoldReport] | type[FoldRow], plain: dict[str, Any]) -> dict[str, Any]:
    return {each.name: plain[each.name] for each in fields(kind) if each.name in plain}
