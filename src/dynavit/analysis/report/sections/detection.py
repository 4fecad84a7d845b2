"""Sections of detection: average precision by size and class, sorts of errors, and pictures with truth beside them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import numpy as np
from PIL import Image

from ....common.fits import check_fits
from ....runs.directory import RunDirectory
from ...detection_examples import address_of, picture_of
from ...draw import MISSED, colour_of, contact_sheet, cut_out, draw_detections
from ...measures.ap_tables import ERRORS, ap_tables
from ...measures.detection_errors import SORTS, judge
from ..blocks import Block, Picture, Pictures, Section, Table, Text
from ..read import Run, named
from ..words import split_name

SURE = 0.5
SHOWN = 8  # pictures
OF_A_SORT = 7  # in the gallery
MOST_CLASSES = 20  # of a table that is not folded away
ABOUT_SORTS = (
    "A detection is right if it has the class of an object and overlaps it by a half or more; repeated, if a surer one did "
    "already. Wrong class: on an object of another class. Badly placed: the right class, and an overlap from 0.1 to 0.5. "
    "Background: near nothing of its class. Objects that no right detection is on are missed."
)


class Objects(TypedDict):
    boxes: list[tuple[float, float, float, float]]
    labels: list[int]
    masks: NotRequired[list[dict[str, Any]] | None]
    scores: NotRequired[list[float]]
    crowd_boxes: NotRequired[list[tuple[float, float, float, float]]]


class Example(TypedDict):
    name: str
    image: str
    found: Objects
    truth: Objects


class Detected(TypedDict, total=False):
    """What an evaluation of a detector has besides."""

    classes: list[str]
    coco: dict[str, Any]
    errors: dict[str, float]
    caution: str
    samples_shown: list[Example]


def run_sections(run: Run) -> list[Section]:
    """From the "coco", "errors" and "samples_shown" of the final evaluation, as far as they are there."""
    found = run.final
    with named(RunDirectory(run.path).evaluation_file(run.split)):
        check_fits(Detected, found)
    where = f"{run.name} on the {split_name(run.split)}"
    blocks: list[Block] = [Text(f"Note: {found['caution']}.")] if found.get("caution") else []
    for title, header, rows in ap_tables(found):
        long = len(rows) > MOST_CLASSES
        notes = [ABOUT_SORTS] if header[0] == ERRORS else []
        blocks.append(Table(f"{title}: {where}", header, rows, notes=notes, summary=title if long else ""))
    sections = [Section("Detections", blocks)]
    classes, examples = found.get("classes") or [], [each for each in found.get("samples_shown") or [] if _complete(each)]
    if classes and examples:
        sections.append(Section("Pictures", [sheet(examples, classes, where), *gallery(examples, classes, where)]))
    return sections


def sheet(examples: Sequence[Mapping[str, Any]], classes: Sequence[str], where: str) -> Pictures:
    """One contact sheet with each picture twice: what is annotated, and what was found."""
    drawn, captions = [], []
    for example in examples[:SHOWN]:
        drawn.append(draw_detections(picture_of(example), example["found"], classes, score=SURE, truth=example["truth"]))
        judged = judge(_sure(example["found"]), example["truth"])
        counts = [f"{judged.sorts.count(sort)} {sort}" for sort in SORTS if judged.sorts.count(sort)]
        counts += [f"{len(judged.missed)} missed"] if judged.missed else []
        captions.append(f"{example['name']}: {', '.join(counts) or 'nothing there, and nothing found'}")
    caption = (
        f"The first pictures of {where}: at the left what is annotated, dashed, and at the right what was found with a "
        f"score of {SURE:g} or more. Groups that are not told apart are grey."
    )
    return Pictures([Picture(address_of(contact_sheet(drawn, captions)), "; ".join(captions))], caption)


def gallery(examples: Sequence[Mapping[str, Any]], classes: Sequence[str], where: str) -> Iterator[Pictures]:
    """Squares around the surest detections of each sort, and around objects that were missed."""
    by_sort: dict[str, list[tuple[float, Picture]]] = {}
    for example in examples:
        picture = picture_of(example)
        for sort, score, cell in _cells(example, picture, classes):
            by_sort.setdefault(sort, []).append((score, cell))
    for sort in (*SORTS, "missed"):
        cells = sorted(by_sort.get(sort, []), key=lambda each: -each[0])
        if cells and sort != "crowd":
            shown = [cell for _, cell in cells[:OF_A_SORT]]
            surest = f"{len(shown)} of {len(cells)}" + ("" if sort == "missed" else ", the surest first")
            yield Pictures(shown, f"{sort.capitalize()} in these pictures: {surest}. Dashed is what is annotated.", small=True)


def _cells(example: Mapping[str, Any], picture: Image.Image, classes: Sequence[str]) -> Iterator[tuple[str, float, Picture]]:
    found, truth = _sure(example["found"]), example["truth"]
    judged = judge(found, truth)
    for place, (sort, partner) in enumerate(zip(judged.sorts, judged.partner, strict=True)):
        name, score = classes[found["labels"][place]], found["scores"][place]
        other = truth["boxes"][partner] if partner >= 0 else None
        cell = cut_out(picture, found["boxes"][place], colour_of(name), other=other)
        instead = f", not {classes[truth['labels'][partner]]}" if sort == "wrong class" else ""
        yield sort, score, Picture(address_of(cell), f"{sort}: {name}", f"{name} {score:.2f}{instead}")
    for place in judged.missed:
        name = classes[truth["labels"][place]]
        cell = cut_out(picture, truth["boxes"][place], MISSED)
        yield (
            "missed",
            float(np.prod(np.subtract(truth["boxes"][place][2:], truth["boxes"][place][:2]))),
            Picture(address_of(cell), f"missed: {name}", name),
        )


def _sure(found: Mapping[str, Any]) -> dict[str, Any]:
    kept = [place for place, score in enumerate(found["scores"]) if score >= SURE]
    return {name: [found[name][place] for place in kept] for name in ("boxes", "scores", "labels")}


def _complete(example: Mapping[str, Any]) -> bool:
    return str(example.get("image", "")).startswith("data:image/") and "scores" in example["found"]
