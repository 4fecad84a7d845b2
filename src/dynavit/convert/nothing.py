"""The answer where a swap would change nothing: why, and the call that swaps all the same."""

import math
import re
from collections import Counter

from ..norms.factory import norm_class_of
from .plan import SwapPlan

HEADS = (8, 6, 4, 3, 2)  # numbers of heads to propose, the first that divides the channels


def nothing_to_swap(plan: SwapPlan) -> str:
    """One call that would swap something, if any norm is only kept, and reasons by the number of norms that have them."""
    reasons = Counter(f"{row.action}: {row.reason}" for row in plan.rows)
    told = [f"{reason}{f' ({count} norms)' if count > 1 else ''}" for reason, count in reasons.most_common(6)]
    return f"{plan.model}: there is no norm to swap by default{_remedy(plan)}. " + "; ".join(told + plan.notes)


def _remedy(plan: SwapPlan) -> str:
    """The call that swaps the largest family of kept norms: those whose paths differ in numbers only."""
    kept = [row for row in plan.rows if row.action == "keep"]
    families = Counter(_pattern(row.path) for row in kept)
    if not families:
        return ""
    pattern, count = families.most_common(1)[0]
    call = f"dynavit.swap_norms(model, {plan.norm!r}, where={pattern!r}"
    if norm_class_of(plan.norm).uses_heads and "heads" not in plan.norm_options:
        channels = math.gcd(*(row.dim for row in kept if _pattern(row.path) == pattern))
        heads = next((heads for heads in HEADS if channels % heads == 0), 1)
        call += f", norm_options={{'heads': {heads}}}"
    return f"; {call}) swaps {count} all the same"


def _pattern(path: str) -> str:
    """'stages.2.blocks.0.norm' -> 'stages.*.blocks.*.norm'."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)
