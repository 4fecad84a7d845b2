"""Replace the norms of any model: the plan with the context of each norm, the way its grid travels, and the swap itself."""

from .grid import MissingGridError, token_grid
from .plan import SwapPlan, SwapRow
from .planning import plan_swap
from .start import unfreeze_norms
from .stored import load_swapped, save_swapped
from .swap import apply_plan, swap_norms

__all__ = [
    "MissingGridError",
    "SwapPlan",
    "SwapRow",
    "apply_plan",
    "load_swapped",
    "plan_swap",
    "save_swapped",
    "swap_norms",
    "token_grid",
    "unfreeze_norms",
]
