"""A linear classifier on features that were computed once (`linear_cached`): logistic regression, fitted to its optimum.

    min over W, b of  mean cross entropy(W x + b, y) + l2 / 2 |W|^2

for every strength l2 of a ladder; the one that is best on a tenth of the training images, kept back, is judged on the test
images once. Features are not standardised.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.splits import cut_validation
from .nearest import accuracies

STRENGTHS = tuple(10.0**power for power in range(0, -7, -1))  # strong ones first: each fit starts from the one before
HELD_BACK, CUT_SEED = 0.1, 0


class Linear(NamedTuple):
    """A classifier: weight (c, classes), bias (classes)."""

    weight: Tensor
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        return features @ self.weight + self.bias


def fitted(features: Tensor, labels: Tensor, classes: int, l2: float, start: Linear | None = None, steps: int = 200) -> Linear:
    """The optimum for features (n, c) and labels (n,), by L-BFGS."""
    if start is None:
        start = Linear(features.new_zeros(features.shape[1], classes), features.new_zeros(classes))
    weight, bias = (part.clone().requires_grad_() for part in start)
    optimiser = torch.optim.LBFGS(
        [weight, bias], max_iter=steps, tolerance_grad=1e-6, tolerance_change=1e-10, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = F.cross_entropy(features @ weight + bias, labels) + l2 / 2 * weight.square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        optimiser.step(loss)
    return Linear(weight.detach(), bias.detach())


def probe(features: Tensor, labels: Tensor, classes: int) -> tuple[Linear, dict[str, Any]]:
    """The classifier that is best on the part kept back, and {"heads": [{"l2", "held_out"}, ...], "chosen"}."""
    train, held = cut_validation(labels, HELD_BACK, CUT_SEED)
    heads: list[Linear] = []
    for l2 in STRENGTHS:
        heads.append(fitted(features[train], labels[train], classes, l2, heads[-1] if heads else None))
    scores = [accuracies(head(features[held]), labels[held])["top1"] for head in heads]
    chosen = max(range(len(heads)), key=lambda number: scores[number])  # the strongest of equals
    rows = [{"l2": l2, "held_out": score} for l2, score in zip(STRENGTHS, scores, strict=True)]
    return heads[chosen], {"heads": rows, "chosen": chosen, "trained_on": len(train), "chosen_on": len(held)}
