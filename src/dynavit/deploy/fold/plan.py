"""The plan of a fold: the steps from a model to its folded structure, in order. It is plain data, and JSON.

A folded run stores it in model.json. Loading takes its steps on a model built afresh and then reads the weights: nothing is
exported or traced, and a later version that folds otherwise still reads the run.
"""

import json
from collections.abc import Callable
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, get_type_hints

from torch import nn

from .steps import KINDS, Step

VERSION = 1


@dataclass
class FoldPlan:
    """The changes of structure by `fold`, enough to make them again (`apply_fold_plan`)."""

    model: str  # its class
    steps: list[Step] = field(default_factory=list)

    def take(self, model: nn.Module, step: Step) -> nn.Module:
        """Take a step now, and remember it."""
        self.steps.append(step)
        return step.take(model)

    def to_dict(self) -> dict[str, Any]:
        steps = [{"kind": step.kind, **asdict(step)} for step in self.steps]
        return json.loads(json.dumps({"version": VERSION, "model": self.model, "steps": steps}))

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | dict[str, Any]) -> "FoldPlan":
        """Refuses, with a ValueError, a step of a kind that this version does not know and values of a wrong type."""
        plain = json.loads(text) if isinstance(text, str) else text
        if not isinstance(plain, dict) or plain.get("version") != VERSION:
            version = plain.get("version") if isinstance(plain, dict) else None
            raise ValueError(f"a fold plan of version {version!r} was given; this dynavit reads version {VERSION}")
        if set(plain) != {"version", "model", "steps"} or not isinstance(plain["steps"], list):
            raise ValueError(f"a fold plan has version, model and a list of steps; this one has {', '.join(sorted(plain))}")
        return cls(str(plain["model"]), [_read_step(number, step) for number, step in enumerate(plain["steps"], 1)])


def apply_fold_plan(model: nn.Module, plan: FoldPlan) -> nn.Module:
    """Give this model the folded structure: the model the plan was made for, built afresh. In place, in evaluation mode.

    Weights are left to `load_state_dict`. A model that does not fit is refused with a ValueError, half changed.
    """
    model = model.eval()
    name = type(model).__name__
    for number, step in enumerate(plan.steps, 1):
        try:
            model = step.take(model)
        except ValueError as error:
            raise ValueError(
                f"step {number} ({step.kind}) of the fold plan, made for {plan.model}, does not fit this {name}: {error}"
            ) from error
    model.fold_plan = plan  # type: ignore[assignment]
    return model


def _read_step(number: int, plain: Any) -> Step:
    where = f"step {number} of the fold plan"
    if not isinstance(plain, dict):
        raise ValueError(f"{where} is no step but {plain!r}")
    values = dict(plain)
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"{where} is of kind {kind!r}; this dynavit knows {', '.join(KINDS)}")
    known, hints = {each.name: each for each in fields(KINDS[kind])}, get_type_hints(KINDS[kind])
    missing = [name for name, each in known.items() if each.default is MISSING and name not in values]
    if missing or not values.keys() <= known.keys():
        wrong = missing + sorted(values.keys() - known.keys())
        raise ValueError(f"{where} ({kind}) has {', '.join(known)}; look at {', '.join(wrong)}")
    for name, value in values.items():
        if not FITS[hints[name]](value):
            raise ValueError(f"{where} ({kind}): {name} cannot be {value!r}")
    return KINDS[kind](**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def _list_of(kind: type, least: int = 0) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and len(value) >= least and all(type(each) is kind for each in value)


FITS: dict[Any, Callable[[Any], bool]] = {  # the types that fields of steps have
    str: lambda value: isinstance(value, str),
    int: lambda value: type(value) is int,
    dict[str, Any]: lambda value: isinstance(value, dict),
    tuple[str, ...]: _list_of(str),
    tuple[int, ...]: _list_of(int, least=1),
}
