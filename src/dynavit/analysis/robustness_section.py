"""What a page says about corrupted images, once `dynavit eval --robust` has measured errors."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .canvas import LOW, draw
from .cells import cell, grid, number
from .corruption_error import summarise
from .dots import DotRow, dots_figure
from .page import Block, Facts, Figure, Figures, Section, Table, Text
from .read import Comparison, Run, Setting
from .statistics import mean, standard_error
from .table import NOTHING, accuracy_text, number_text
from .words import SPLITS, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "Robustness"
GROUPS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
COLLECTIONS = {"imagenet_r": "ImageNet-R", "imagenet_a": "ImageNet-A"}
NOT_COMPARED = "Where mCE is missing, corruptions, severities or images are others than the baseline's."


# ---- One run


def robustness_section(run: Run) -> Section:
    blocks: list[Block] = []
    for kind in ("corruptions", "imagenet_c"):
        if found := run.robust.get(kind):
            figure = _severity_figure(run.name, found)
            blocks += [Text(_how_measured(found)), _summary(found), Figures([figure]), _errors_table(found)]
    rows = [
        [COLLECTIONS[kind], str(found["samples"]), percent(found["error"]), percent(found["top5"])]
        for kind, found in run.robust.items()
        if kind in COLLECTIONS
    ]
    if rows:
        note = "Only the 200 classes of a collection can be chosen, as usual for these."
        blocks.append(Table("Other collections", ["collection", "images", "error, %", "top-5, %"], rows, notes=[note]))
    return Section(TITLE, blocks)


def _how_measured(found: dict[str, Any]) -> str:
    if found["kind"] == "imagenet_c":
        return "Errors on the files of ImageNet-C."
    images = found["conditions"]["images"]
    where = SPLITS.get(images["split"], f"split {images['split']}")
    severities = {"small": "severities for small images", "large": "the severities of ImageNet-C"}[images["table"]]
    return f"Errors on {images['samples']} images, the {where} of {images['data']}, corrupted in many ways, with {severities}."


def _severity_figure(name: str, found: dict[str, Any]) -> Figure:
    """Corruptions down, severities across, clean images first."""
    errors, clean = found["errors"], found["clean_error"]
    columns = ["clean", *map(str, found["severities"])] if clean is not None else list(map(str, found["severities"]))

    def paint(axes: "Axes") -> None:
        for row, values in enumerate(errors.values()):
            for column, value in enumerate([*([] if clean is None else [clean]), *values]):
                cell(axes, row, column, LOW, value)
                number(axes, row, column, len(columns), f"{100 * value:.1f}")
        grid(axes, [_words(corruption) for corruption in errors], columns)
        axes.set_xlabel("severity")

    svg = draw(f"{name} {found['kind']}", 0.7 + 0.24 * len(errors), paint)
    caption = "Errors in %: a row for each corruption, a column for each severity. The stronger the colour, the more mistakes."
    return Figure(svg, f"Error of {name} for each corruption and severity", caption)


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


def robustness_comparison(comparison: Comparison, series: Mapping[str, int]) -> Section:
    """Settings down, as in Table 6 of the DTN paper. `series` are the colours of the settings."""
    if not any(run.robust.get("corruptions") for run in comparison.runs):
        return Section(TITLE)
    baseline = comparison.baseline
    rows, dots, results = [], [], {}
    for setting in comparison.settings:
        found = _by_seed(setting)
        scores = list(_mean_corruption_errors(found, _by_seed(baseline)).values()) if baseline else []
        results[setting.name] = list(found.values())
        rows.append([setting.name, str(len(found)), _percents_text(scores), *_overall(results[setting.name])])
        if scores:
            centre, error = mean(scores), standard_error(scores)
            interval = (centre - error, centre + error) if error else None
            dots.append(DotRow(setting.name, series[setting.name], centre, interval, scores))
    name = baseline.name if baseline else "a baseline"
    notes = [
        "Means over seeds, ± one standard error of the mean. Errors are means over corruptions and severities.",
        f"mCE compares each run with {name} under the same seed: 100 is equally robust, less is better.",
        *([NOT_COMPARED] if baseline and len(dots) < len(rows) else []),
    ]
    header = ["setting", "seeds", f"mCE against {name}, %", "clean error, %", "corrupted error, %", "gap, points"]
    blocks: list[Block] = [Table("Robustness of each setting", header, rows, notes=notes)]
    if svg := dots_figure("mCE", f"mCE against {name}, %", dots, zero=100):
        several = "Large dots are means, lines ± one standard error, small dots the single seeds."
        caption = (
            f"{several if any(row.interval for row in dots) else 'Each dot is a single seed.'} Further left is more robust."
        )
        blocks.append(Figures([Figure(svg, f"mCE of each setting against {name}", caption)]))
    return Section(TITLE, [*blocks, _corruptions_table(results)])


def _corruptions_table(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """The paper has corruptions across; 15 columns do not fit a page."""
    rows = []
    for group, corruptions in GROUPS.items():
        for corruption in corruptions:
            row = [f"{group}: {_words(corruption)}"]
            for found in results.values():
                known = [mean(result["errors"][corruption]) for result in found if corruption in result["errors"]]
                row.append(f"{100 * mean(known):.1f}" if known and len(known) == len(found) else NOTHING)
            rows.append(row)
    notes = ["Means over severities and seeds, only of corruptions that all runs of a setting have."]
    return Table("Errors for each corruption", ["error, %", *results], rows, notes=notes)


def _words(corruption: str) -> str:
    return corruption.replace("_", " ")


def _by_seed(setting: Setting) -> dict[int, dict[str, Any]]:
    found = {run.seed: run.robust.get("corruptions") for run in setting.runs}
    return {seed: result for seed, result in found.items() if seed is not None and result}


def _mean_corruption_errors(found: Mapping[int, Any], baseline: Mapping[int, Any]) -> dict[int, float]:
    """mCE by seed, where both were measured in the same way."""
    scores = {}
    for seed, result in found.items():
        against = baseline.get(seed)
        if against and _measured_as(result) == _measured_as(against):
            score = summarise(result["errors"], result["clean_error"], against)["mce"]
            if score is not None:
                scores[seed] = score
    return scores


def _measured_as(result: Mapping[str, Any]) -> tuple[Any, ...]:
    return result["conditions"]["images"], result["severities"], list(result["errors"])


def _overall(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Clean error, corrupted error, gap."""
    keys = ("clean_error", "mean_error", "gap")
    return [accuracy_text([result[key] for result in results if result[key] is not None]) for key in keys]


def _percents_text(values: Sequence[float]) -> str:
    return accuracy_text([value / 100 for value in values])
