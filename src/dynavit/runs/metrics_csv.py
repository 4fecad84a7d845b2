"""metrics.csv: the train and eval lines of metrics.jsonl as a table, for spreadsheets and pandas."""

import csv
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from ..common.files import replacing
from ..common.json_lines import json_lines
from .directory import RunDirectory

FIRST = ("kind", "split", "weights", "step", "epoch")


def write_metrics_csv(run: str | PathLike[str]) -> Path:
    """Write RUN/metrics.csv anew and return where it is; also of a run that is still training.

    A row for each line, a column for each number that any of them has, empty where a line has none. What depends on the clock
    stands last. Lines are read twice, one at a time: the first time for the columns.
    """
    directory = RunDirectory(run)
    columns = dict.fromkeys(FIRST)
    of_clock: dict[str, None] = {}
    for line in _lines(directory.metrics_file):
        columns |= dict.fromkeys(_numbers(line))
        of_clock |= dict.fromkeys(line.get("time") or {})
    with (
        replacing(directory.metrics_table) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        table = csv.DictWriter(file, [*columns, *(name for name in of_clock if name not in columns)], lineterminator="\n")
        table.writeheader()
        for line in _lines(directory.metrics_file):
            where = {name: line[name] for name in FIRST if name in line}
            table.writerow((line.get("time") or {}) | _numbers(line) | where)
    return directory.metrics_table


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    """Whole lines of these two kinds; notes and what layers report are no rows."""
    return (line for line in json_lines(file) if line is not None and line.get("kind") in ("train", "eval"))


def _numbers(line: dict[str, Any]) -> dict[str, Any]:
    """Numbers, and None for those that were not finite."""
    return {name: value for name, value in line.items() if name not in FIRST and isinstance(value, int | float | None)}
