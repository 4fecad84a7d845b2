"""The plan of a swap: one row for every norm of a model, with the action and its reason. It is plain data, and JSON."""

import json
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

Action = Literal["swap", "keep", "refuse"]
# (b, t, c), (b, rows, cols, c), (b, c, rows, cols), (t, b, c), (b, blocks, cells, c), (b, cells, blocks, c)
AxisOrder = Literal["tokens", "map", "channels_first", "sequence_first", "blocks", "strided"]


@dataclass
class SwapRow:
    """One norm. "keep": it is swapped only if `where` names it; "refuse": a swap could not be right."""

    path: str
    old: str  # its class
    action: Action
    reason: str
    site: str  # what it stands in front of: "attn", "mlp", "other"; "linear_bn": a BatchNorm behind a linear layer
    depth: int | None  # index of its block, counted through the model
    dim: int
    heads: int
    layout: AxisOrder
    num_prefix_tokens: int
    ndim: int = 2  # 1: a sequence
    grid: tuple[int, ...] | None = None  # in the planning run; each forward pass has its own
    also: tuple[str, ...] = ()  # further paths of the same module


@dataclass
class SwapPlan:
    """Everything that `swap_norms` does to a model, enough to do it again (`apply_plan`)."""

    model: str  # its class
    norm: str
    rows: list[SwapRow]
    norm_options: dict[str, Any] = field(default_factory=dict)
    start: str | None = None
    causal: bool = False
    input_size: tuple[int, ...] | None = None  # of the run that the rows come from
    notes: list[str] = field(default_factory=list)
    first: str | None = None  # the module through which the image enters
    patch: tuple[int, int] | None = None  # for patch embeddings without a convolution: the size of a patch in pixels
    deviation: float | None = None  # largest change of an output by the swap, relative to the largest output
    earlier: "SwapPlan | None" = None  # of a model that had been swapped before

    def counts(self) -> dict[str, int]:
        """Numbers of rows: {"swap": .., "keep": .., "refuse": ..}."""
        counted = Counter(row.action for row in self.rows)
        return {"swap": counted["swap"], "keep": counted["keep"], "refuse": counted["refuse"]}

    def swapped(self) -> list[SwapRow]:
        return [row for row in self.rows if row.action == "swap"]

    def to_dict(self) -> dict[str, Any]:
        return json.loads(self.to_json())

    def to_json(self) -> str:
        return json.dumps({"version": 1, **asdict(self)}, indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | dict[str, Any]) -> "SwapPlan":
        values = dict(json.loads(text) if isinstance(text, str) else text)
        version = values.pop("version", None)
        if version != 1:
            raise ValueError(f"a swap plan of version {version!r} was given; this dynavit reads version 1")
        return cls._from_values(values)

    @classmethod
    def _from_values(cls, values: dict[str, Any]) -> "SwapPlan":
        unknown = set(values) - {each.name for each in fields(cls)}
        if unknown:
            raise ValueError(f"a swap plan has no {', '.join(sorted(unknown))}")
        values["rows"] = [SwapRow(**{key: _tuple(value) for key, value in row.items()}) for row in values["rows"]]
        for name in ("input_size", "patch"):
            values[name] = _tuple(values.get(name))
        if values.get("earlier") is not None:
            values["earlier"] = cls._from_values(dict(values["earlier"]))
        return cls(**values)

    def __str__(self) -> str:
        lines = [f"{self.model} -> {self.norm}: " + ", ".join(f"{n} {action}" for action, n in self.counts().items())]
        width = max((len(row.path) for row in self.rows), default=0)
        lines += [f"  {row.action:<6}  {row.path:<{width}}  {row.reason}" for row in self.rows]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
