"""Options, machine and notes of runs."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..blocks import Block, Facts, Notes, Section
from ..read import Run

EVERYDAY = ("task", "data", "model", "norm", "epochs", "batch_size", "lr", "seed")


def facts_of(runs: Sequence[Run], varied: Sequence[str] = ()) -> list[Block]:
    """The options all runs share, the everyday ones openly and the rest folded away."""
    configs = [dict(flat(run.config | _followed(run))) for run in runs if run.config]
    if not configs:
        return []
    hidden = {*varied, "seed"} if len(runs) > 1 else set()
    shared = {
        name: value
        for name, value in configs[0].items()
        if name not in hidden and all(config.get(name) == value for config in configs[1:])
    }
    rows = [(name.replace("_", " "), shared.pop(name)) for name in EVERYDAY if name in shared]
    blocks: list[Block] = [Facts(rows)] if rows else []
    if shared:
        blocks.append(
            Facts(list(shared.items()), "All other options" if len(runs) == 1 else "All other options the runs share")
        )
    return blocks


def _followed(run: Run) -> dict[str, str]:
    """Options that were left open, as what followed from data and model; older runs have not written that down."""
    what = {"task": run.environment.get("task", "that of the model"), "norm": run.environment.get("norms", "the model's own")}
    return {name: text for name, text in what.items() if name in run.config and run.config[name] is None}


def flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested names joined by dots, values as text.

    >>> flat({"optim": {"clip": 1.0}, "norm": "dtn", "note": None})
    [('optim.clip', '1'), ('norm', 'dtn'), ('note', 'none')]
    """
    rows = []
    for name, value in values.items():
        if isinstance(value, dict):
            rows += flat(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            rows.append((prefix + name, ", ".join(map(_plain, value))))
        else:
            rows.append((prefix + name, _plain(value)))
    return rows


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def machine_text(machine: dict[str, Any]) -> str:
    """
    >>> machine_text({"date": "today", "processor": "Some CPU", "cores": 2, "threads": 1, "torch": "2.13.0"})
    'Some CPU, 2 cores, 1 thread, torch 2.13.0'
    """
    parts = []
    for name, value in machine.items():
        if isinstance(value, int):
            parts.append(f"{value} {name.removesuffix('s') if value == 1 else name}")
        elif name != "date":
            parts.append(str(value) if name == "processor" else f"{name} {value}")
    return ", ".join(parts)


def notes_section(runs: Sequence[Run], more: Sequence[str] = ()) -> Section:
    """Broken images, fall-backs and the like: each text once, with the runs that noted it."""
    texts: dict[str, Counter[str]] = {}
    for run in runs:
        for line in run.lines("note"):
            texts.setdefault(str(line.get("text", "")), Counter())[run.name] += 1
    notes = []
    for text, who in texts.items():
        names = [name if n == 1 else f"{name} {n} times" for name, n in who.items()]
        notes.append(f"{text} ({', '.join(names)})" if len(runs) > 1 else text)
    return Section("Notes", [Notes([*more, *notes])] if more or notes else [])
