"""The median of a few rows. Sorting them is several times faster than `torch.quantile`, which asks more questions."""

from torch import Tensor


def median(values: Tensor) -> Tensor:
    """(m, ...) -> (...); of an even number of values the middle between two, where torch.median takes the lower one."""
    ordered, size = values.sort(0).values, values.shape[0]
    return (ordered[(size - 1) // 2] + ordered[size // 2]) / 2
