"""The norm that each DTN has become: nearer to LayerNorm, to InstanceNorm, or to a local InstanceNorm."""

from typing import Any

from ..blocks import Section, Table, Text
from ..words import number_text
from .runs import run_name

SHARES = ("ln", "in", "local")


def dtn_nature(found: dict[str, Any]) -> Section:
    shares = [f"{moment}: {share}" for moment in ("mean", "variance") for share in ("LN", "IN", "local")]
    header = ["norm", "site", "became", *shares]
    tables = [
        Table(
            f"What each DTN of {run_name(run)} has become",
            header,
            [
                [layer["path"], layer["site"], layer["became"], *_cells(layer["mean"]), *_cells(layer["variance"])]
                for layer in run["layers"]
            ],
            notes=[f"{run_name(run)}, shares in %. Those of the mean add up to 100, and so do those of the variance."],
        )
        for run in found["runs"]
        if run["layers"]
    ]
    text = Text(
        "DTN can turn into other norms. LN: statistics of the token itself; IN: those of all tokens alike; local: those of "
        "the tokens around it. Under “became” stands the largest share of the mean and the variance together."
    )
    return Section("What each DTN became", [text, *tables])


def _cells(shares: dict[str, Any]) -> list[str]:
    return [number_text(shares[name] if shares[name] is None else 100 * shares[name], ".0f") for name in SHARES]
