"""docs/compatibility.md: what was tried with every norm and with every family of models, and what came of it.

    python docsite/compatibility.py                 # tries everything and writes the page; minutes
    python docsite/compatibility.py --norms ln,dtn  # prints the rows of these norms instead

Norms come from the registry, so a new one has a row by itself. Every cell is tried; nothing is filled in by hand.
"""

import argparse
import sys
import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import tried_models
import tried_norms
import tried_processes
from documents_as_pages import ROOT
from tried_cell import Cell, tried

import dynavit
from dynavit.common.files import write_text

PAGE = ROOT / "docs" / "compatibility.md"
ORDER = ("eager", "compile", "export", "ONNX", "AMP", "DDP", "FSDP", "checkpointing", "vmap", "masks", "fold")
Rows = dict[str, dict[str, Cell]]


def try_norms(names: Iterable[str], columns: Iterable[str] = ORDER) -> Rows:
    """{norm: {column: cell}}"""
    names, columns = list(names), list(columns)
    rows: Rows = {name: {} for name in names}
    if set(columns) & set(tried_processes.COLUMNS):
        together = tried_processes.try_in_processes(names)
        for name in names:
            rows[name] |= {column: together[column][name] for column in together if column in columns}
    for name in names:
        for column in [column for column in columns if column in tried_norms.COLUMNS]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's own, about its own parts
                rows[name][column] = tried(partial(tried_norms.COLUMNS[column], name))
        print(f"{name}: {', '.join(f'{column} {cell.mark}' for column, cell in rows[name].items())}", file=sys.stderr)
    return rows


def try_models(labels: Iterable[str] = tuple(tried_models.MODELS)) -> Rows:
    """{model: {norm: cell}}"""
    rows: Rows = {}
    for label in labels:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows[label] = {norm: tried(partial(tried_models.swap, label, norm)) for norm in tried_models.NORMS}
        print(f"{label}: {', '.join(f'{norm} {cell.mark}' for norm, cell in rows[label].items())}", file=sys.stderr)
    return rows


class Footnotes:
    """Reasons, each with one number however often it is given."""

    def __init__(self, letter: str) -> None:
        self.letter, self.reasons = letter, list[str]()

    def mark(self, cell: Cell) -> str:
        if not cell.reason:
            return cell.mark
        if cell.reason not in self.reasons:
            self.reasons.append(cell.reason)
        return f"{cell.mark} ({self.letter}{self.reasons.index(cell.reason) + 1})"

    def lines(self) -> list[str]:
        return [f"- {self.letter}{number}: {reason}." for number, reason in enumerate(self.reasons, 1)]


def table(first: str, columns: Iterable[str], rows: Mapping[str, Mapping[str, Cell]], notes: Footnotes) -> list[str]:
    columns = list(columns)
    lines = [f"| {first} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| `{name}` | {' | '.join(notes.mark(row[column]) for column in columns)} |" for name, row in rows.items()]
    return [*lines, "", *notes.lines()]


def page(norms: Rows, models: Rows) -> str:
    about = {**tried_norms.COLUMNS, **tried_processes.COLUMNS}
    lines = [
        "# Compatibility",
        "",
        "Everything below was tried by `python docsite/compatibility.py`, which wrote this page. A cell that is not a plain",
        "yes has its reason under the table. Nothing here was run on a GPU.",
        f"torch {version('torch').partition('+')[0]}, timm {version('timm')}, CPU.",
        "",
        "## Norms",
        "",
        "A layer in the middle of its training, against the same layer in an ordinary call:",
        "",
        *(f"- **{column}**: {summary(about[column])}" for column in ORDER),
        "",
        *table("norm", ORDER, norms, Footnotes("n")),
        "",
        "## Models",
        "",
        *(tried_models.__doc__ or "").partition("\n\n")[2].strip().splitlines(),
        "",
        "The table says how many norms `swap_norms` swaps, of how many, and why others are kept (k) or refused (r).",
        "[Swapping](convert.md) says how to overrule what is kept, and how LeViT and models without attention are swapped.",
        "",
        *table("model", tried_models.NORMS, models, Footnotes("m")),
        "",
    ]
    return "\n".join(lines)


def summary(function: object) -> str:
    return " ".join((function.__doc__ or "").split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--norms", help="names, separated by commas; their rows are printed")
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args()
    if options.norms:
        print("\n".join(table("norm", ORDER, try_norms(options.norms.split(",")), Footnotes("n"))))
    else:
        write_text(options.out, page(try_norms(dynavit.list_norms()), try_models()))


if __name__ == "__main__":
    main()
