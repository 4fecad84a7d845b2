"""A comparison as rows: each number once, in words that claim no more than the seeds support."""

from dataclasses import dataclass

from ..statistics import PairedDifference, mean, paired_difference, standard_error
from .read import Comparison, Setting

NOTHING = "–"


@dataclass(frozen=True)
class Row:
    """One setting. `best`: it has the highest mean of those with several seeds, which need not mean much."""

    name: str
    best: bool
    cells: tuple[str, ...]


def comparison_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Header and rows for a terminal; `*` marks the highest mean; `table_notes` says what that is worth."""
    rows = [[row.name, row.cells[0] + (" *" if row.best else ""), *row.cells[1:]] for row in comparison_rows(comparison)]
    return comparison_header(comparison), rows


def comparison_header(comparison: Comparison) -> list[str]:
    first = comparison.varied[0] if len(comparison.varied) == 1 else "setting"
    baseline = comparison.baseline.name if comparison.baseline else "baseline"
    return [
        first,
        "accuracy, %",
        "seeds",
        f"difference to {baseline}, points",
        "excludes 0",
        "parameters",
        "GMACs",
        "time per step",
    ]


def comparison_rows(comparison: Comparison) -> list[Row]:
    best = best_setting(comparison)
    return [
        Row(
            name=setting.name,
            best=setting is best,
            cells=(
                accuracy_text(list(accuracies(comparison, setting).values())),
                seeds_text(len(accuracies(comparison, setting)), setting.planned),
                *difference_text(difference(comparison, setting)),
                integer_text(setting.cost.get("parameters")),
                number_text(setting.cost.get("gmacs"), ".3g"),
                number_text(setting.cost.get("step_ratio"), ".2f", "×"),
            ),
        )
        for setting in comparison.settings
    ]


def table_notes(comparison: Comparison) -> list[str]:
    """What the signs in the table mean, one sentence each."""
    counts = [len(accuracies(comparison, setting)) for setting in comparison.settings]
    baseline = comparison.baseline.name if comparison.baseline else None
    notes = []
    if not any(counts):
        return ["No run has finished yet."]
    if max(counts) > 1:
        fewest = min(count for count in counts if count)
        n = f"n = {max(counts)}" if fewest == max(counts) else f"n = {fewest} to {max(counts)}"
        notes.append(f"Accuracy is top-1 on the {comparison.split} split: mean ± standard error of the mean over {n} seeds.")
    else:
        notes.append(
            f"Accuracy is top-1 on the {comparison.split} split with one seed: there is no spread, so neither ± nor interval."
        )
    if baseline and any(d and d.interval for d in (difference(comparison, s) for s in comparison.settings)):
        notes.append(
            f"Differences to {baseline} are in percentage points, paired by seed, with 95 % Student-t intervals in brackets, "
            "not corrected for the number of rows. An interval that includes 0 does not tell the two apart."
        )
    if any(setting.cost for setting in comparison.settings):
        notes.append(
            "GMACs are thousand millions of multiply-adds for one image; time per step is that of training"
            + (f", relative to {baseline}." if baseline else ", relative to the baseline.")
        )
    if best := best_setting(comparison):
        others = [setting for setting in comparison.settings if setting is not best and accuracies(comparison, setting)]
        apart = [setting.name for setting in others if told_apart(comparison, setting, best)]
        close = [setting.name for setting in others if setting.name not in apart]
        verdicts = ["separates it from " + ", ".join(apart)] if apart else []
        verdicts += ["does not separate it from " + ", ".join(close)] if close else []
        notes.append(f"Marked: {best.name}, the highest mean. The paired 95 % interval {' and '.join(verdicts)}.")
    return notes


def accuracies(comparison: Comparison, setting: Setting) -> dict[int, float]:
    return setting.results(comparison.split, "top1")


def difference(comparison: Comparison, setting: Setting) -> PairedDifference | None:
    """To the baseline; None for the baseline itself and where there is nothing to pair."""
    if comparison.baseline is None or setting is comparison.baseline:
        return None
    return paired_difference(accuracies(comparison, setting), accuracies(comparison, comparison.baseline))


def best_setting(comparison: Comparison) -> Setting | None:
    """The highest mean; None where single seeds or a single setting leave nothing to compare."""
    several = [setting for setting in comparison.settings if len(accuracies(comparison, setting)) > 1]
    if len(several) < 2:
        return None
    return max(several, key=lambda setting: mean(list(accuracies(comparison, setting).values())))


def told_apart(comparison: Comparison, one: Setting, other: Setting) -> bool:
    found = paired_difference(accuracies(comparison, one), accuracies(comparison, other))
    return found is not None and found.excludes_zero is True


def accuracy_text(values: list[float]) -> str:
    """In percent.

    >>> accuracy_text([0.97, 0.98, 0.99]), accuracy_text([0.97]), accuracy_text([])
    ('98.00 ± 0.58', '97.00', '–')
    """
    if not values:
        return NOTHING
    error = standard_error(values)
    return f"{100 * mean(values):.2f}" + ("" if error is None else f" ± {100 * error:.2f}")


def seeds_text(finished: int, planned: int) -> str:
    return str(finished) if finished == planned else f"{finished} of {planned}"


def difference_text(difference: PairedDifference | None) -> tuple[str, str]:
    """(difference with interval, whether that excludes 0)."""
    if difference is None:
        return NOTHING, NOTHING
    text = signed(100 * difference.mean)
    if difference.interval is None:
        return text, "one seed" if difference.seeds == 1 else "no spread"
    low, high = difference.interval
    return f"{text} [{signed(100 * low)}, {signed(100 * high)}]", "yes" if difference.excludes_zero else "no"


def signed(number: float) -> str:
    """
    >>> signed(1.234), signed(-1.234), signed(-0.001)
    ('+1.23', '−1.23', '0.00')
    """
    text = f"{number:+.2f}".replace("-", "−")
    return text[1:] if text[1:] == "0.00" else text


def number_text(number: float | None, form: str, unit: str = "") -> str:
    return NOTHING if number is None else f"{number:{form}}{unit}"


def integer_text(number: int | None) -> str:
    return NOTHING if number is None else f"{number:,}"
