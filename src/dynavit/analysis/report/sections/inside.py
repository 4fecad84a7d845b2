"""Sections about the inside of models: the figures and tables that `inside.draw_all` stored, on the page."""

from itertools import groupby
from typing import Any

from ....runs.directory import AnyDirectory
from ..blocks import Block, Facts, Figures, Sample, Samples, Section, StoredFigure, Table, Text
from ..figures.canvas import for_page
from ..figures.stored_svg import checked_svg
from ..read import Inside
from ..words import split_name

MOST_ROWS = 12  # of a table beside figures: a longer one is folded away


def inside_sections(inside: Inside) -> list[Section]:
    """Runs and images come first. [] if there is no analysis."""
    if not inside.index:
        return []
    sections = [Section(section["title"], _blocks(section, inside)) for section in inside.sections]
    return [what_was_probed(inside), *sections]


def what_was_probed(inside: Inside) -> Section:
    index = inside.index
    sources, split = index.get("sources") or {}, str(index.get("split", ""))
    rows = [
        ("made", str(index.get("created", "")).replace("T", " ")),
        ("command", index.get("command", "")),
        ("images", f"{index['images']} of the {split_name(split)} of {index['data']}" if split else ""),
        *(("run", _source(name, sources.get(name) or {})) for name in index.get("runs") or []),
    ]
    return Section("What was probed", [Facts([row for row in rows if row[1]])])


def _source(name: str, source: dict[str, Any]) -> str:
    """
    >>> _source("a", {"path": "runs/a", "checkpoint": "last", "weights": "ema", "step": 90, "model": "vit_tiny"})
    'a: vit_tiny in runs/a, checkpoint last, step 90, weights ema'
    """
    if not source:
        return name
    about = ", ".join(f"{key} {source[key]}" for key in ("checkpoint", "step", "weights"))
    return f"{name}: {source['model']} in {source['path']}, {about}"


def _blocks(section: dict[str, Any], inside: Inside) -> list[Block]:
    blocks: list[Block] = [Text(section["text"])]
    drawn = [figure for figure in section["figures"] if figure["svg"] in inside.figures]
    for _, group in groupby(drawn, key=lambda figure: figure["group"]):
        blocks.append(Figures([StoredFigure(f["label"], f["caption"], _embedded(f["svg"], inside)) for f in group]))
    for table in section["tables"]:
        folded = table["label"] if drawn and len(table["rows"]) > MOST_ROWS else ""
        blocks.append(Table(table["label"], table["header"], table["rows"], notes=table["notes"], summary=folded))
    for gallery in section["samples"]:
        samples = [Sample(**sample) for sample in gallery["samples"] if sample["image"].startswith("data:image/")]
        blocks.append(Samples(samples, gallery["caption"]))
    return blocks


def _embedded(name: str, inside: Inside) -> str:
    try:
        return for_page(checked_svg(inside.figures[name]))
    except ValueError as error:
        file = AnyDirectory(inside.path).figure_file(name)
        raise ValueError(f"{file}: dynavit did not draw this figure ({error}); run `dynavit analyze` again") from error
