"""From the JSON files in `analysis/` to figures beside them, and an index of what there is."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ....common.files import write_bytes, write_json, write_text
from ..figures.canvas import draw_files
from ..figures.lambdas import lambdas
from ..plate import Chapter
from ..words import SPLITS
from .attention_distance import attention_distance
from .attention_maps import attention_maps
from .directions import directions
from .dtn_nature import dtn_nature
from .exits import exits
from .magnitudes import magnitudes
from .mean_variation import mean_variation
from .positions import positions

Shown = Callable[[dict[str, Any]], Chapter]

# In the order of the page.
KINDS: dict[str, Shown] = {
    "magnitudes": magnitudes,
    "attention_distance": attention_distance,
    "mean_variation": mean_variation,
    "lambda": lambdas,
    "dtn_nature": dtn_nature,
    "positions": positions,
    "directions": directions,
    "attention_maps": attention_maps,
    "exits": exits,
}
WITHOUT_IMAGES = {"lambda", "dtn_nature", "positions"}  # weights alone
OF_SHOWN = {"directions", "attention_maps"}  # made of the few images that are shown


def draw_all(directory: str | Path, *, created: str = "", command: str = "") -> list[dict[str, Any]]:
    """Draw every kind of numbers in `directory`, a run's analysis/; return the sections, as written to its index.json.

    Each figure becomes an SVG file, a PNG file and an entry of the index. Figures of an earlier call disappear.
    """
    directory = Path(directory)
    found = {kind: _read(directory / f"{kind}.json") for kind in KINDS if (directory / f"{kind}.json").is_file()}
    if not found:
        raise ValueError(f"{directory}: nothing to draw, none of {', '.join(KINDS)} (.json) is there; run `dynavit analyze`")
    drawn = [_drawn(directory, kind, numbers) for kind, numbers in found.items()]
    sections = [section for section in drawn if section["figures"] or section["tables"]]
    written = {figure[ending] for section in sections for figure in section["figures"] for ending in ("svg", "png")}
    first = next(iter(found.values()))
    runs = {run["name"]: run.get("source") or {} for numbers in found.values() for run in numbers["runs"]}
    about = {"created": created, "command": command, **{name: first[name] for name in ("images", "data", "split")}}
    write_json(directory / "index.json", {**about, "runs": list(runs), "sources": runs, "sections": sections})
    for file in directory.iterdir():
        if re.fullmatch(rf"(?:{'|'.join(KINDS)})-\d+\.(?:svg|png)", file.name) and file.name not in written:
            file.unlink()
    return sections


def _drawn(directory: Path, kind: str, numbers: dict[str, Any]) -> dict[str, Any]:
    chapter = KINDS[kind](numbers)
    figures = []
    for number, plate in enumerate(chapter.plates):
        name = f"{kind}-{number}"
        svg, png = draw_files(name, plate.height, plate.paint)
        write_text(directory / f"{name}.svg", svg)
        write_bytes(directory / f"{name}.png", png)
        about = {"name": name, "label": plate.label, "caption": plate.caption, "group": plate.group}
        figures.append({**about, "svg": f"{name}.svg", "png": f"{name}.png", "json": f"{kind}.json"})
    split = SPLITS.get(numbers["split"], f"split {numbers['split']}")
    where = ""
    if kind in OF_SHOWN:
        where = f" Of the images shown in this report, from the {split} of {numbers['data']}."
    elif kind not in WITHOUT_IMAGES:
        where = f" Measured on {numbers['images']} images of the {split} of {numbers['data']}."
    return {
        "kind": kind,
        "title": chapter.title,
        "text": chapter.text + where,
        "figures": figures,
        "tables": [
            {"label": table.label, "header": table.header, "rows": table.rows, "notes": table.notes} for table in chapter.tables
        ],
        "samples": [
            {"caption": gallery.caption, "samples": [vars(sample) for sample in gallery.samples]} for gallery in chapter.samples
        ],
    }


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not isinstance(found.get("runs"), list):
            raise ValueError('no list of "runs" in it')
    except ValueError as error:
        raise ValueError(f"{file}: not the numbers of a figure ({error}); remove it or run `dynavit analyze` again") from error
    return found
