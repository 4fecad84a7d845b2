"""What a figure cannot show of a run, said in words."""

from collections.abc import Sequence
from typing import Any

from ..figures.over_layers import run_name

MOST_NAMED = 4


def left_out(runs: Sequence[dict[str, Any]], what: str) -> list[str]:
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
