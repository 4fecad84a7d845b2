"""Statistics over a handful of seeds: mean, standard error, and Student's interval of a paired difference. Over many samples:
Wilson's interval of a share, and McNemar's test of two models on the same samples."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PairedDifference:
    """Treatment minus baseline, seed by seed.

    Attributes:
        mean: over the seeds that both have.
        seeds: how many those are.
        interval: 95 % Student-t interval of the mean; None if one seed or equal differences give no spread to estimate it from.
    """

    mean: float
    seeds: int
    interval: tuple[float, float] | None

    @property
    def excludes_zero(self) -> bool | None:
        """None: there is no interval to tell from."""
        return None if self.interval is None else not self.interval[0] <= 0 <= self.interval[1]


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean, from the sample variance; None for a single value, which has no spread."""
    if len(values) < 2:
        return None
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1) / len(values))


def paired_difference(treatment: Mapping[int, float], baseline: Mapping[int, float]) -> PairedDifference | None:
    """From results by seed; None without a common seed. The same seed gives both the same data order, so we pair."""
    differences = [value - baseline[seed] for seed, value in treatment.items() if seed in baseline]
    if not differences:
        return None
    centre, error = mean(differences), standard_error(differences)
    # Differences of fractions that should be equal differ by rounding, hence not `error == 0`.
    if error is None or error <= 1e-12 * max(map(abs, differences), default=0.0):
        return PairedDifference(centre, len(differences), None)
    reach = t_quantile(0.975, len(differences) - 1) * error
    return PairedDifference(centre, len(differences), (centre - reach, centre + reach))


def t_quantile(probability: float, dof: int) -> float:
    r"""Student's t: the value below which `probability` of the distribution lies, for a whole number of degrees of freedom.

    With $t = \sqrt{\nu} \tan\theta$ the distribution function is a finite sum in $\theta$, which we invert by bisection.
    """
    if dof < 1 or not 0 < probability < 1:
        raise ValueError(f"t_quantile: wants dof of at least 1 and a probability between 0 and 1; got {dof}, {probability}")
    if probability < 0.5:
        return -t_quantile(1 - probability, dof)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _central_mass(middle, dof) < 2 * probability - 1 else (low, middle)
    return math.sqrt(dof) * math.tan(low)


def _central_mass(theta: float, dof: int) -> float:
    """P(|T| < √ν tan θ). Abramowitz & Stegun 26.7.3 (odd ν) and 26.7.4 (even ν)."""
    odd = dof % 2
    cosine, total = math.cos(theta), 0.0
    term = cosine if odd else 1.0
    for power in range(odd, dof - 1, 2):  # each term is the last one times cos² θ (power + 1) / (power + 2)
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    return 2 / math.pi * (theta + math.sin(theta) * total) if odd else math.sin(theta) * total


def wilson_interval(right: int, samples: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """95 % interval of a share, which stays inside 0 to 1. Wilson 1927.

    >>> [round(end, 4) for end in wilson_interval(370, 1000)]
    [0.3406, 0.4004]
    """
    if not 0 <= right <= samples or samples < 1:
        raise ValueError(f"wilson_interval: {right} of {samples} is no share")
    share, whole = right / samples, 1 + z * z / samples
    centre = (share + z * z / (2 * samples)) / whole
    reach = z / whole * math.sqrt(share * (1 - share) / samples + z * z / (4 * samples**2))
    return max(centre - reach, 0.0), min(centre + reach, 1.0)


def mcnemar(only_one: int, only_other: int) -> float:
    """Exact two-sided p-value that two models are equally good, from the samples that only one of them gets right: would a fair
    coin fall so unevenly? McNemar 1947.

    >>> round(mcnemar(1, 5), 9)
    0.21875
    """
    n, few = only_one + only_other, min(only_one, only_other)
    if few < 0:
        raise ValueError(f"mcnemar: counts are not negative, got {only_one} and {only_other}")
    # Sums of binomials as logarithms: 2^n overflows from a thousand samples on.
    logs = [math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2) for k in range(few + 1)]
    return min(1.0, 2 * math.fsum(map(math.exp, logs)))
