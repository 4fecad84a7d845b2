"""Calibration: accuracy of predictions grouped by their confidence. Guo et al., ICML 2017.

Groups are kept as sums, which add over batches and processes: `bin_sums` of each batch, added, then `filled_bins` and
`calibration_error`.
"""

import torch
from torch import Tensor

BINS = 15


def bin_sums(confidence: Tensor, correct: Tensor, bins: int = BINS) -> Tensor:
    """(n,) in [0, 1] and (n,) bool -> (3, bins) in float64: samples, summed confidence and correct ones in each of the bins
    (0, 1/bins], (1/bins, 2/bins], ..., lowest first."""
    confidence, correct = confidence.double(), correct.double()
    place = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    values = torch.stack([torch.ones_like(confidence), confidence, correct])
    return values.new_zeros(3, bins).index_add(1, place, values)


def filled_bins(sums: Tensor) -> list[dict[str, float]]:
    """(3, bins) -> of each bin that has any: "samples", and the mean "confidence" and "accuracy" of these, lowest first."""
    return [
        {"samples": int(samples), "confidence": confidence / samples, "accuracy": correct / samples}
        for samples, confidence, correct in sums.T.tolist()
        if samples
    ]


def calibration_error(sums: Tensor) -> float:
    """(3, bins) -> the distance between confidence and accuracy, averaged over samples bin by bin."""
    samples, confidence, correct = sums
    return float((confidence - correct).abs().sum() / samples.sum())


def reliability(confidence: Tensor, correct: Tensor, bins: int = BINS) -> list[dict[str, float]]:
    """The filled bins of a reliability diagram, of all samples at once: (n,) in [0, 1] and (n,) bool."""
    return filled_bins(bin_sums(confidence, correct, bins))
