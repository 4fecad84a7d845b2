"""Error under corruption, relative to a baseline. Hendrycks and Dietterich, ICLR 2019, arXiv 1903.12261.

Errors are fractions: {corruption: [error at each severity]}. Corruption errors are percentages of a baseline's.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..statistics import mean

Errors = Mapping[str, Sequence[float]]

NOTHING_ADDED = 1e-9  # sums of fractions leave rests of 1e-16, one image more or less is 1e-6 and above

ALEXNET_CLEAN = 0.435
# Published as means over the five severities of ImageNet-C. Only those sums matter, so each severity gets the mean.
ALEXNET: Errors = {
    name: [percent / 100] * 5
    for name, percent in {
        "gaussian_noise": 88.6,
        "shot_noise": 89.4,
        "impulse_noise": 92.3,
        "defocus_blur": 82.0,
        "glass_blur": 82.6,
        "motion_blur": 78.6,
        "zoom_blur": 79.8,
        "snow": 86.7,
        "frost": 82.7,
        "fog": 81.9,
        "brightness": 56.5,
        "contrast": 85.3,
        "elastic_transform": 64.6,
        "pixelate": 71.8,
        "jpeg_compression": 60.7,
    }.items()
}


def summarise(errors: Errors, clean: float | None, baseline: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All measures of one model: mean_error and its gap to the clean error; ce, mce, relative_mce against the "errors" and
    "clean_error" of a baseline, None without one; notes about corruptions that these leave out."""
    mean = mean_error(errors)
    found: dict[str, Any] = {"mean_error": mean, "gap": None if clean is None else mean - clean}
    if baseline is None:
        return found | {"ce": None, "mce": None, "relative_mce": None, "notes": []}
    ce = corruption_errors(errors, baseline["errors"])
    relative: dict[str, float | None] = {}
    if clean is not None and baseline["clean_error"] is not None:
        relative = relative_corruption_errors(errors, clean, baseline["errors"], baseline["clean_error"])
    notes = []
    if perfect := [name for name, value in ce.items() if value is None]:
        notes.append(f"mCE leaves out {', '.join(perfect)}: the baseline makes no mistake there")
    if free := [name for name, value in relative.items() if value is None]:
        notes.append(f"relative mCE leaves out {', '.join(free)}: corruption adds nothing to the baseline's error there")
    if len(ce) < len(ALEXNET):
        notes.append(f"mCE is over {len(ce)} of {len(ALEXNET)} corruptions")
    means = {"mce": mean_of_known(ce.values()), "relative_mce": mean_of_known(relative.values())}
    return found | {"ce": ce, **means, "notes": notes}


def mean_error(errors: Errors) -> float:
    """Over severities, then over corruptions."""
    return mean([mean(list(values)) for values in errors.values()])


def corruption_errors(errors: Errors, baseline: Errors) -> dict[str, float | None]:
    """CE of each corruption: 100 Σ E / Σ E of the baseline, sums over severities; None where the baseline makes no mistake.

    >>> corruption_errors({"fog": [0.1, 0.3]}, {"fog": [0.2, 0.6]})
    {'fog': 50.0}
    """
    return relative_corruption_errors(errors, 0.0, baseline, 0.0)


def relative_corruption_errors(
    errors: Errors, clean: float, baseline: Errors, baseline_clean: float
) -> dict[str, float | None]:
    """The same with the clean error subtracted from every error; None where corruption adds nothing to the baseline's."""
    found: dict[str, float | None] = {}
    for name, values in errors.items():
        if name not in baseline or len(baseline[name]) != len(values):
            raise ValueError(f"{name}: the baseline was not measured at the same {len(values)} severities; measure it too")
        added = sum(baseline[name]) - len(values) * baseline_clean
        found[name] = 100 * (sum(values) - len(values) * clean) / added if added > NOTHING_ADDED else None
    return found


def mean_corruption_error(errors: Errors, baseline: Errors) -> float | None:
    """mCE; None if no corruption has a CE."""
    return mean_of_known(corruption_errors(errors, baseline).values())


def relative_mean_corruption_error(errors: Errors, clean: float, baseline: Errors, baseline_clean: float) -> float | None:
    return mean_of_known(relative_corruption_errors(errors, clean, baseline, baseline_clean).values())


def mean_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None
