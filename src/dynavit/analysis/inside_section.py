"""What a page says about the inside of models: the figures and tables that `figures.draw_all` made, embedded as they are."""

import re
from itertools import groupby
from typing import Any

from .canvas import for_page
from .page import Block, Facts, Figure, Figures, Sample, Samples, Section, Table, Text
from .read import Inside

# Everything that our figures are made of; more would be somebody else's, and might run or fetch something.
ELEMENTS = {"svg", "rect", "defs", "style", "g", "path", "text", "tspan", "use", "image", "clipPath"}

MOST_ROWS = 12  # of a table beside figures: a longer one is folded away


def inside_sections(inside: Inside) -> list[Section]:
    return [Section(section["title"], _blocks(section, inside.figures)) for section in inside.sections]


def what_was_probed(inside: Inside) -> Section:
    index = inside.index
    rows = [
        ("runs", ", ".join(index.get("runs") or [])),
        ("data", f"{index.get('data', '')}, {index.get('images', 0)} images of the split {index.get('split', '')}"),
        ("command", index.get("command", "")),
    ]
    return Section("What was probed", [Facts([row for row in rows if row[1]])])


def _blocks(section: dict[str, Any], svgs: dict[str, str]) -> list[Block]:
    blocks: list[Block] = [Text(section["text"])]
    drawn = [figure for figure in section["figures"] if figure["svg"] in svgs]
    for _, group in groupby(drawn, key=lambda figure: figure["group"]):
        blocks.append(Figures([Figure(_embedded(f["svg"], svgs), f["label"], f["caption"]) for f in group]))
    for table in section["tables"]:
        folded = table["label"] if drawn and len(table["rows"]) > MOST_ROWS else ""
        blocks.append(Table(table["label"], table["header"], table["rows"], notes=table["notes"], summary=folded))
    for gallery in section["samples"]:
        samples = [Sample(**sample) for sample in gallery["samples"] if sample["image"].startswith("data:image/")]
        blocks.append(Samples(samples, gallery["caption"]))
    return blocks


def _embedded(name: str, svgs: dict[str, str]) -> str:
    svg = for_page(svgs[name])
    foreign = set(re.findall(r"<([\w:]+)", svg)) - ELEMENTS
    addresses = re.findall(r'href="(?!#|data:image/png;)[^"]*', svg)
    if foreign or addresses or re.search(r"<[^>]*\son\w+\s*=", svg):
        raise ValueError(f"analysis/{name}: dynavit did not draw this figure; run `dynavit analyze` again")
    return svg
