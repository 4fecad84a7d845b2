"""The learning rate as a function of the step: a rise over `warmup_steps` to `base`, then a fall. Schedules go by name."""

import math
from collections.abc import Callable

from ..common.registry import nearest_match_error


def cosine(step: int, total: int, warmup_steps: int, base: float, min_fraction: float) -> float:
    """A linear rise, then half a cosine towards the minimum.

    The first step already learns: the rise reaches base / warmup_steps there, and `base` in its last step.
    """
    if step < warmup_steps:
        return base * (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, total - warmup_steps)
    return base * (min_fraction + (1 - min_fraction) * 0.5 * (1 + math.cos(math.pi * progress)))


def rsqrt_warmup(step: int, total: int, warmup_steps: int, base: float, min_fraction: float) -> float:
    """A linear rise from 0, then a fall like 1 / sqrt(step), as transformers were first trained (Vaswani et al. 2017, arXiv
    1706.03762). The fall does not depend on `total` and has no minimum.
    """
    warmup_steps = max(warmup_steps, 1)
    return base * step / warmup_steps if step < warmup_steps else base * math.sqrt(warmup_steps / step)


def half_cosine(step: int, total: int, start: float, end: float) -> float:
    """From `start` at step 0 along half a cosine, so that step `total`, the first after the last, would have `end`.

    >>> [half_cosine(step, 4, 1.0, 0.0) for step in (0, 2, 4)]
    [1.0, 0.5, 0.0]
    """
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * step / total))


def steps(step: int, total: int, warmup_steps: int, base: float, min_fraction: float) -> float:
    """A linear rise from a thousandth of `base`; a tenth of it after 2/3 of the training, a hundredth after 11/12.

    Of 12 epochs these are the 8th and the 11th: the "1x" schedule of detectors. `min_fraction` has no say.
    """
    if step < warmup_steps:
        return base * (0.001 + 0.999 * step / warmup_steps)
    return base * (1 if 3 * step < 2 * total else 0.1 if 12 * step < 11 * total else 0.01)


SCHEDULES: dict[str, Callable[[int, int, int, float, float], float]] = {
    "cosine": cosine,
    "rsqrt_warmup": rsqrt_warmup,
    "steps": steps,
}


def lr_at(step: int, total: int, warmup_steps: int, base: float, min_fraction: float = 0.0, schedule: str = "cosine") -> float:
    """The learning rate of step number `step` of `total`.

    >>> [lr_at(step, 6, 2, 1.0) for step in range(3)]
    [0.5, 1.0, 1.0]
    >>> [lr_at(step, 6, 1, 1.0, schedule="rsqrt_warmup") for step in (0, 1, 4)]
    [0.0, 1.0, 0.5]
    """
    if schedule not in SCHEDULES:
        raise nearest_match_error("optim.schedule", schedule, SCHEDULES)
    return SCHEDULES[schedule](step, total, warmup_steps, base, min_fraction)
