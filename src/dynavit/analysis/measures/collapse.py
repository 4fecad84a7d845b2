"""Signs that self-distillation has collapsed: the codes of images, distributions over k prototypes, tell nothing about them.

    h = mean entropy of a code,   H = entropy of the mean code,   I = H - h

I is the information, in nats, that a code carries about its image: at most ln min(k, n) for n images. It is 0 where all codes
are uniform and where all are the same prototype, the two ways to collapse, which loss and entropies alone do not tell apart
from success.
"""

import math

import torch
from torch import Tensor


def code_measures(sums: Tensor, entropies: Tensor, count: float) -> dict[str, float]:
    """Measures of `count` codes from their sum (k,) and the sum () of their entropies.

    "code_entropy" h, "mean_code_entropy" H, "information" I, and "information_share": I of the most there could be.
    """
    prototypes = sums.numel()
    mean = sums.double() / count
    spread = float(-torch.xlogy(mean, mean).sum())
    own = float(entropies) / count
    most = math.log(max(min(prototypes, count), 2))
    information = max(spread - own, 0.0)
    return {
        "code_entropy": own,
        "mean_code_entropy": spread,
        "information": information,
        "information_share": information / most,
    }


def effective_rank(gram: Tensor) -> float:
    """exp of the entropy of the normalised singular values of features (n, c), from their Gram matrix (c, c): how many
    directions they spread over (Roy and Vetterli 2007). 1: all features are the same."""
    values = torch.linalg.eigvalsh(gram.double()).clamp(min=0).sqrt()
    share = values / values.sum().clamp(min=torch.finfo(values.dtype).tiny)
    return float(torch.exp(-torch.xlogy(share, share).sum()))
