"""Sections about errors on corrupted images, once `dynavit robust` has measured them."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ....common.metric import NOTHING
from ...measures.corruption_error import summarise
from ...statistics import mean
from ..blocks import Block, Facts, Figure, Figures, Section, Table, Text
from ..figures.cells import Cell, cells_figure
from ..figures.dots import dots_figure, mean_row, mean_rows_caption
from ..read import Comparison, Run
from ..words import ERROR, mean_text, number_text, percent, seeds_text, split_name

TITLE = "Robustness"
GROUPS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
WHERE = {"corruptions": "", "imagenet_c": " on ImageNet-C"}
COLLECTIONS = {"imagenet_r": "ImageNet-R", "imagenet_a": "ImageNet-A"}
AMONG_200 = "Only the 200 classes of a collection can be chosen, as usual for these."
MEANS = "Means over seeds, ± one standard error of the mean."
SEVERITIES_OF = {
    "small": "severities for small images",
    "large": "the severities of ImageNet-C",
    "extra": "the severities of the [robust] extra",
}
Results = dict[str, dict[int, dict[str, Any]]]  # of each setting and seed


# ---- One run


def robustness_section(run: Run) -> Section:
    blocks: list[Block] = []
    for kind in WHERE:
        if found := run.robust.get(kind):
            figure = _severity_figure(run.name, found)
            blocks += [Text(_how_measured(found)), _summary(found), Figures([figure]), _errors_table(found)]
    rows = [
        [COLLECTIONS[kind], str(found["samples"]), percent(found["error"]), percent(found["top5"])]
        for kind, found in run.robust.items()
        if kind in COLLECTIONS
    ]
    if rows:
        told = [note for kind, found in run.robust.items() if kind in COLLECTIONS for note in found["notes"]]
        notes = [AMONG_200, *(_sentence(note) for note in dict.fromkeys(told))]
        blocks.append(Table("Other collections", ["collection", "images", "error, %", "top-5, %"], rows, notes=notes))
    return Section(TITLE, blocks)


def _how_measured(found: dict[str, Any]) -> str:
    if found["kind"] == "imagenet_c":
        return "Errors on the files of ImageNet-C."
    images = found["conditions"]["images"]
    where = split_name(images["split"])
    severities = SEVERITIES_OF[images["table"]]
    return f"Errors on {images['samples']} images, the {where} of {images['data']}, corrupted in many ways, with {severities}."


def _severity_figure(name: str, found: dict[str, Any]) -> Figure:
    """Corruptions down, severities across, clean images first."""
    errors = found["errors"]
    clean = [] if found["clean_error"] is None else [found["clean_error"]]
    columns = [*(["clean"] if clean else []), *map(str, found["severities"])]
    cells = [
        Cell(row, column, False, value, f"{100 * value:.1f}")
        for row, values in enumerate(errors.values())
        for column, value in enumerate([*clean, *values])
    ]
    caption = "Errors in %: a row for each corruption, a column for each severity. The stronger the colour, the more mistakes."
    label = f"Error of {name} for each corruption and severity"
    names, height = [_words(corruption) for corruption in errors], 0.7 + 0.24 * len(errors)
    return cells_figure(label, caption, height, names, columns, cells, xlabel="severity")


def _summary(found: dict[str, Any]) -> Facts:
    values = {
        "clean images": (found["clean_error"], "error {:.2%}"),
        "corrupted images": (found["mean_error"], "error {:.2%}, mean over corruptions and severities"),
        "gap": (None if found["gap"] is None else 100 * found["gap"], "{:+.2f} percentage points"),
    }
    if found["baseline"]:
        values["mCE"] = (found["mce"], f"{{:.1f}} % of {found['baseline']['name']}")
        values["relative mCE"] = (found["relative_mce"], "{:.1f} %, of what corruption adds to the error on clean images")
    return Facts([(name, NOTHING if value is None else text.format(value)) for name, (value, text) in values.items()])


def _errors_table(found: dict[str, Any]) -> Table:
    against, ce = found["baseline"], found["ce"] or {}
    header = ["corruption", "mean error, %", *([f"CE against {against['name']}, %"] if against else [])]
    rows = [
        [_words(corruption), percent(mean(values)), *([number_text(ce[corruption], ".1f")] if against else [])]
        for corruption, values in found["errors"].items()
    ]
    how = f"CE is the sum of errors over severities as a percentage of {against['name']}'s; mCE is its mean." if against else ""
    notes = [*([how] if how else []), *(_sentence(note) for note in found["notes"])]
    return Table("Errors under corruption", header, rows, notes=notes)


def _sentence(note: str) -> str:
    return note[0].upper() + note[1:] + "."


# ---- A comparison


def robustness_comparison(comparison: Comparison) -> Section:
    """Settings down, as in Table 6 of the DTN paper."""
    blocks = [block for kind in WHERE for block in _compare_corruptions(comparison, kind)]
    return Section(TITLE, [*blocks, *_compare_collections(comparison)])


def _compare_corruptions(comparison: Comparison, kind: str) -> list[Block]:
    results = _comparable(comparison, kind)
    if not any(results.values()):
        return []
    baseline = comparison.baseline.name if comparison.baseline and results[comparison.baseline.name] else None
    rows, dots = [], []
    for setting in comparison.settings:
        found = results[setting.name]
        scores = _mean_corruption_errors(found, results[baseline]) if baseline else []
        compared = [_mean_text([score / 100 for score in scores])] if baseline else []
        rows.append([setting.name, seeds_text(len(found), setting.planned), *compared, *_overall(found)])
        if scores:
            dots.append(mean_row(setting.name, comparison.series(setting), scores))
    notes = [f"{MEANS} Errors are means over corruptions and severities."]
    if baseline:
        notes.append(f"mCE compares each run with {baseline} under the same seed: 100 is equally robust, less is better.")
    notes += _about_missing(comparison, results, baseline)
    against = [f"mCE against {baseline}, %"] if baseline else []
    header = ["setting", "seeds", *against, "clean error, %", "corrupted error, %", "gap, points"]
    blocks: list[Block] = [Table(f"Robustness of each setting{WHERE[kind]}", header, rows, notes=notes)]
    label, caption = f"mCE of each setting against {baseline}{WHERE[kind]}", mean_rows_caption(dots)
    if figure := dots_figure(label, f"{caption} Further left is more robust.", f"mCE against {baseline}, %", dots, line_at=100):
        blocks.append(Figures([figure]))
    return [*blocks, _corruptions_table(kind, results)]


def _corruptions_table(kind: str, results: Results) -> Table:
    """The paper has corruptions across; 15 columns do not fit a page. All results have the same corruptions."""
    measured = next(iter(result for found in results.values() for result in found.values()))["errors"]
    rows = [
        [f"{group}: {_words(corruption)}", *(_of_corruption(corruption, found) for found in results.values())]
        for group, corruptions in GROUPS.items()
        for corruption in corruptions
        if corruption in measured
    ]
    notes = ["Means over severities and seeds."]
    return Table(f"Errors for each corruption{WHERE[kind]}", ["error, %", *results], rows, notes=notes)


def _of_corruption(corruption: str, found: Mapping[int, Any]) -> str:
    return f"{100 * mean([mean(result['errors'][corruption]) for result in found.values()]):.1f}" if found else NOTHING


def _compare_collections(comparison: Comparison) -> list[Block]:
    rows, notes = [], [f"{MEANS} {AMONG_200}"]
    for kind, title in COLLECTIONS.items():
        results = _comparable(comparison, kind)
        for setting in comparison.settings:
            if found := results[setting.name].values():
                values = [_mean_text([result[value] for result in found]) for value in ("error", "top5")]
                rows.append([title, setting.name, seeds_text(len(found), setting.planned), *values])
        if any(results.values()):
            notes += _about_missing(comparison, results, None)
    header = ["collection", "setting", "seeds", "error, %", "top-5, %"]
    return [Table("Other collections", header, rows, notes=list(dict.fromkeys(notes)))] if rows else []


def _comparable(comparison: Comparison, kind: str) -> Results:
    """Results that were measured in the same way: the baseline's usual way and its seeds, or without a baseline the usual way
    of all. Means over other images or severities cannot stand side by side."""
    results = {
        setting.name: {run.seed: run.robust[kind] for run in setting.runs if run.seed is not None and run.robust.get(kind)}
        for setting in comparison.settings
    }
    against = results[comparison.baseline.name] if comparison.baseline else {}
    ways = Counter(_way(result) for found in ([against] if against else results.values()) for result in found.values())
    if not ways:
        return results
    usual = ways.most_common(1)[0][0]
    seeds = {seed for seed, result in against.items() if _way(result) == usual}
    return {
        name: {seed: result for seed, result in found.items() if _way(result) == usual and (seed in seeds or not against)}
        for name, found in results.items()
    }


def _way(result: Mapping[str, Any]) -> str:
    """The way a result was measured, as text that can be compared."""
    conditions = {name: value for name, value in result["conditions"].items() if name != "model"}
    return json.dumps([conditions, result.get("severities"), list(result.get("errors", {}))], sort_keys=True)


def _about_missing(comparison: Comparison, results: Results, baseline: str | None) -> list[str]:
    if all(len(results[setting.name]) == setting.planned for setting in comparison.settings):
        return []
    alike = f"{baseline} under the same seed" if baseline else "the others"
    return [
        "Seeds that are missing were not measured by `dynavit robust`, or not with the same images, corruptions and severities "
        f"as {alike}."
    ]


def _mean_corruption_errors(found: Mapping[int, Any], baseline: Mapping[int, Any]) -> list[float]:
    scores = [summarise(result["errors"], None, baseline[seed])["mce"] for seed, result in found.items()]
    return [score for score in scores if score is not None]


def _overall(found: Mapping[int, Any]) -> list[str]:
    """Clean error, corrupted error, gap."""
    keys = ("clean_error", "mean_error", "gap")
    return [_mean_text([result[key] for result in found.values() if result[key] is not None]) for key in keys]


def _mean_text(fractions: list[float]) -> str:
    """In percent."""
    return mean_text(fractions, ERROR)


def _words(corruption: str) -> str:
    return corruption.replace("_", " ")
