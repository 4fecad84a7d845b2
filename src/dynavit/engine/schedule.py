"""The learning rate as a function of the step."""

import math


def lr_at(step: int, total: int, warmup_steps: int, base: float, min_fraction: float = 0.0) -> float:
    """The learning rate of step number `step` of `total`: a linear rise to `base`, then half a cosine towards the minimum.

    The first step already learns: the rise reaches base / warmup_steps there, and `base` in its last step.

    >>> [lr_at(step, 6, 2, 1.0) for step in range(3)]
    [0.5, 1.0, 1.0]
    """
    if step < warmup_steps:
        return base * (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, total - warmup_steps)
    return base * (min_fraction + (1 - min_fraction) * 0.5 * (1 + math.cos(math.pi * progress)))
