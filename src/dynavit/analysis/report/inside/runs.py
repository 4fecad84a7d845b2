"""The runs in the JSON files of an analysis: their names, their layers, and which of these are missing."""

import re
from collections.abc import Sequence
from typing import Any

from ..figures.numbers import Numbers, numbers

RunNumbers = dict[str, Any]

MOST_NAMED = 4


def run_name(run: RunNumbers) -> str:
    """With its norm, if no part of the name tells it.

    >>> run_name({"name": "dtn-seed0", "norm": "dtn"}), run_name({"name": "main", "norm": "in"})
    ('dtn-seed0', 'main (in)')
    """
    name, norm = (" ".join(["", *re.split(r"[\W_]+", text), ""]) for text in (run["name"], run["norm"]))
    return run["name"] if not run["norm"] or norm in name else f"{run['name']} ({run['norm']})"


def paths_of(runs: Sequence[RunNumbers]) -> list[str]:
    """The layers of all runs, in the order of the models."""
    return list(dict.fromkeys(layer["path"] for run in runs for layer in run["layers"]))


def values_of(run: RunNumbers, value: str, paths: Sequence[str]) -> Numbers:
    """One value of each layer, NaN for layers that the run does not have."""
    known = {layer["path"]: layer[value] for layer in run["layers"]}
    return numbers([known.get(path) for path in paths])


def left_out(runs: Sequence[RunNumbers], what: str) -> list[str]:
    """A sentence for each run of which an attention or a norm is missing.

    >>> left_out([{"name": "dtn", "norm": "dtn", "left_out": ["a.attn", "b.attn"]}, {"name": "ln", "norm": "ln"}], "attention")
    ['dtn: without 2 attentions that could not be observed (a.attn, b.attn).']
    """
    sentences = []
    for run in runs:
        if paths := run.get("left_out"):
            some = ", ".join(paths[:MOST_NAMED])
            more = f" and {len(paths) - MOST_NAMED} more" if len(paths) > MOST_NAMED else ""
            many = "" if len(paths) == 1 else "s"
            sentences.append(f"{run_name(run)}: without {len(paths)} {what}{many} that could not be observed ({some}{more}).")
    return sentences
