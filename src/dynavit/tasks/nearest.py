"""k nearest neighbours as a judge of features (Wu et al. 2018, arXiv 1805.01978).

score_c(x) = sum over the k most similar x_j of [y_j = c] exp(<x, x_j> / 0.07),   features on the unit sphere
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

TEMPERATURE = 0.07
NEIGHBOURS = (10, 20, 100, 200)
USUAL = 20  # the k that results are named by
CHUNK = 2**25  # numbers at a time


def neighbour_scores(
    bank: Tensor, labels: Tensor, queries: Tensor, classes: int, neighbours: Iterable[int]
) -> dict[int, Tensor]:
    """{k: scores (q, classes)} of queries (q, c) by a bank (n, c) with labels (n,).

    Equal scores count for the class of the lowest number; features are brought to the unit sphere here.
    """
    ks = sorted(set(neighbours))
    if ks[-1] > len(bank):
        raise ValueError(f"k = {ks[-1]} neighbours are more than the {len(bank)} training images; take a smaller k")
    bank, queries = F.normalize(bank, dim=-1), F.normalize(queries, dim=-1)
    scores: dict[int, list[Tensor]] = {k: [] for k in ks}
    for some in queries.split(max(1, CHUNK // max(len(bank), 1))):
        similar, index = (some @ bank.mT).topk(ks[-1], dim=-1)
        votes = torch.zeros(len(some), classes, dtype=bank.dtype, device=bank.device)
        done = 0
        for k in ks:
            weight = (similar[:, done:k] / TEMPERATURE).exp()
            votes = votes.scatter_add(1, labels[index[:, done:k]], weight)
            scores[k].append(votes)
            done = k
    return {k: torch.cat(parts) for k, parts in scores.items()}


def accuracies(scores: Tensor, labels: Tensor) -> dict[str, float]:
    """{"top1", "top5"} of scores (q, classes); the lowest class wins where scores are equal."""
    ranked = scores.sort(dim=-1, descending=True, stable=True).indices[:, :5]
    hits = ranked == labels[:, None]
    return {"top1": float(hits[:, 0].double().mean()), "top5": float(hits.any(1).double().mean())}
