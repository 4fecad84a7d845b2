"""From the JSON files of an analysis to figures beside them, and an index of what there is."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ....common.files import write_bytes, write_json, write_text
from ....runs.directory import AnyDirectory
from ..blocks import Figure, Figures, Samples, Section, Table, Text
from ..figures.canvas import svg_and_png
from ..sections.lambdas import lambdas_of_analysis
from ..words import split_name
from .anchors import anchors
from .attention_distance import attention_distance
from .attention_maps import attention_maps
from .directions import directions
from .dtn_nature import dtn_nature
from .exits import exits
from .magnitudes import magnitudes
from .mean_variation import mean_variation
from .padding import padding
from .positions import positions

# In the order of the page. Each section is a text, figures, tables and samples, in this order.
KINDS: dict[str, Callable[[dict[str, Any]], Section]] = {
    "magnitudes": magnitudes,
    "attention_distance": attention_distance,
    "mean_variation": mean_variation,
    "lambda": lambdas_of_analysis,
    "dtn_nature": dtn_nature,
    "positions": positions,
    "directions": directions,
    "attention_maps": attention_maps,
    "exits": exits,
    "anchors": anchors,
    "padding": padding,
}
WITHOUT_IMAGES = {"lambda", "dtn_nature", "positions"}  # weights alone
OF_SHOWN = {"directions", "attention_maps", "padding"}  # made of the few images that are shown


def draw_all(directory: str | Path, *, created: str = "", command: str = "") -> list[dict[str, Any]]:
    """Draw the analysis of a run or comparison from its numbers; return the sections, as written to the index.

    Each figure becomes an SVG file, a PNG file and an entry of the index. Figures of an earlier call disappear.
    """
    files = AnyDirectory(directory)
    found = {kind: _read(files.analysis_file(kind)) for kind in KINDS if files.analysis_file(kind).is_file()}
    if not found:
        raise ValueError(
            f"{files.analysis}: nothing to draw, none of {', '.join(KINDS)} (.json) is there; run `dynavit analyze`"
        )
    drawn = [_drawn(files, kind, numbers) for kind, numbers in found.items()]
    sections = [section for section in drawn if section["figures"] or section["tables"]]
    written = {figure[ending] for section in sections for figure in section["figures"] for ending in ("svg", "png")}
    first = next(iter(found.values()))
    runs = {run["name"]: run.get("source") or {} for numbers in found.values() for run in numbers["runs"]}
    about = {"created": created, "command": command, **{name: first[name] for name in ("images", "data", "split")}}
    write_json(files.analysis_index, {**about, "runs": list(runs), "sources": runs, "sections": sections})
    for file in files.analysis.iterdir():
        if re.fullmatch(rf"(?:{'|'.join(KINDS)})-\d+\.(?:svg|png)", file.name) and file.name not in written:
            file.unlink()
    return sections


def _drawn(files: AnyDirectory, kind: str, numbers: dict[str, Any]) -> dict[str, Any]:
    """Write the figures of one kind; its entry in the index. Figures with the same "group" stand side by side."""
    section = KINDS[kind](numbers)
    groups = [block for block in section.blocks if isinstance(block, Figures)]
    todo = [(str(group), figure) for group, block in enumerate(groups) for figure in block.figures]
    figures = []
    for number, (group, figure) in enumerate(todo):
        assert isinstance(figure, Figure)
        name = f"{kind}-{number}"
        svg, png = svg_and_png(name, figure)
        entry = {"name": name, "label": figure.label, "caption": figure.caption, "group": group}
        entry |= {"svg": f"{name}.svg", "png": f"{name}.png", "json": files.analysis_file(kind).name}
        write_text(files.figure_file(entry["svg"]), svg)
        write_bytes(files.figure_file(entry["png"]), png)
        figures.append(entry)
    return {
        "kind": kind,
        "title": section.title,
        "text": " ".join([block.text for block in section.blocks if isinstance(block, Text)] + _measured_on(kind, numbers)),
        "figures": figures,
        "tables": [
            {"label": block.label, "header": block.header, "rows": block.rows, "notes": block.notes}
            for block in section.blocks
            if isinstance(block, Table)
        ],
        "samples": [
            {"caption": block.caption, "samples": [vars(sample) for sample in block.samples]}
            for block in section.blocks
            if isinstance(block, Samples)
        ],
    }


def _measured_on(kind: str, numbers: dict[str, Any]) -> list[str]:
    where = f"the {split_name(numbers['split'])} of {numbers['data']}"
    if kind in WITHOUT_IMAGES:
        return []
    if kind in OF_SHOWN:
        return [f"Of the images shown in this report, from {where}."]
    return [f"Measured on {numbers['images']} images of {where}."]


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not isinstance(found.get("runs"), list):
            raise ValueError('no list of "runs" in it')
    except ValueError as error:
        raise ValueError(f"{file}: not the numbers of a figure ({error}); remove it or run `dynavit analyze` again") from error
    return found
