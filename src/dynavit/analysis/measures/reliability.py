"""Whether confidence can be believed: accuracy of predictions grouped by their confidence. Guo et al., ICML 2017."""

import torch
from torch import Tensor


def reliability(confidence: Tensor, correct: Tensor, bins: int = 15) -> list[dict[str, float]]:
    """(n,) in [0, 1] and (n,) bool -> the filled ones of the bins (0, 1/15], (1/15, 2/15], ..., lowest first.

    Each has "samples", and the mean "confidence" and "accuracy" of these.
    """
    confidence, correct = confidence.double(), correct.double()
    place = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    samples, sure, right = (
        torch.zeros(bins, dtype=torch.float64, device=place.device).index_add(0, place, values).tolist()
        for values in (torch.ones_like(confidence), confidence, correct)
    )
    return [
        {"samples": int(n), "confidence": total / n, "accuracy": hits / n}
        for n, total, hits in zip(samples, sure, right, strict=True)
        if n
    ]
