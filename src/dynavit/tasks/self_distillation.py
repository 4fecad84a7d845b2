"""The equations of self-distillation (DINO): losses, targets, schedules. Pure functions of tensors and numbers.

Axes:  i the two global views that a teacher sees, v all views that a student sees (the global ones first), b samples,
k prototypes.
"""

import math

import torch
from torch import Tensor

from ..norms.statistics.distributed import max_over_processes, sum_over_processes

SINKHORN_ITERATIONS = 3


def distillation_loss(log_p: Tensor, targets: Tensor) -> Tensor:
    """Mean over b and over all pairs of a teacher's and another view of the cross entropy.

    log_p (v, b, k) are the student's log probabilities, targets (i, b, k) the teacher's probabilities:

        loss = 1 / (i v - i) sum_i sum_{v != i} mean_b [ - sum_k targets_ibk log_p_vbk ]
    """
    pairs = torch.einsum("ibk,vbk->iv", targets, log_p)
    teachers, students = pairs.shape
    same = pairs[:, :teachers].diagonal().sum()
    return (same - pairs.sum()) / (log_p.shape[1] * teachers * (students - 1))


def centred_targets(logits: Tensor, centre: Tensor, temperature: float) -> Tensor:
    """softmax((logits - centre) / temperature), (i, b, k), with centre (k,)."""
    return ((logits - centre) / temperature).softmax(-1)


def sinkhorn_targets(logits: Tensor, count: int, temperature: float) -> Tensor:
    """Targets (i, b, k) such that every prototype gets about the same share of the batch, over all processes: Sinkhorn's
    iterations on exp(logits / temperature) (Caron et al. 2020, arXiv 2006.09882).

    Only the first `count` samples take part; the others, which have no weight in the loss, get a softmax.
    """
    views, _, prototypes = logits.shape
    scaled = logits / temperature
    largest = max_over_processes(scaled.max())
    matrix = (scaled[:, :count] - largest).exp().flatten(0, 1)  # (i count, k)
    (members,) = sum_over_processes(logits.new_tensor(float(len(matrix))))
    for _ in range(SINKHORN_ITERATIONS):
        (by_prototype,) = sum_over_processes(matrix.sum(0))
        matrix = matrix / (by_prototype * prototypes).clamp(min=torch.finfo(matrix.dtype).tiny)
        matrix = matrix / (matrix.sum(1, keepdim=True) * members).clamp(min=torch.finfo(matrix.dtype).tiny)
    targets = (matrix * members).unflatten(0, (views, count))
    return torch.cat([targets, scaled[:, count:].softmax(-1)], 1)


def entropy(probabilities: Tensor) -> Tensor:
    """(..., k) -> (...), in nats."""
    return -torch.xlogy(probabilities, probabilities).sum(-1)


def momentum_at(step: int, total: int, start: float) -> float:
    """The teacher's share of itself: from `start` along half a cosine to 1.

    >>> [momentum_at(step, 4, 0.9) for step in (0, 2, 4)]
    [0.9, 0.95, 1.0]
    """
    return 1 - (1 - start) * (1 + math.cos(math.pi * step / total)) / 2


def temperature_at(step: int, warmup_steps: int, start: float, end: float) -> float:
    """The teacher's temperature: linear from `start` to `end` over the warm-up, then constant.

    >>> [temperature_at(step, 2, 0.04, 0.08) for step in (0, 1, 2, 9)]
    [0.04, 0.06, 0.08, 0.08]
    """
    return start + (end - start) * step / warmup_steps if step < warmup_steps else end
