"""A linear classifier on frozen features of augmented images (`linear`), DINO's protocol with DINOv2's sweep.

Every head, one for each feature set and learning rate, is trained on the same images at once: SGD with momentum 0.9, no weight
decay, a cosine to 0. The head that is best on a tenth of the training images, kept back, is judged on the test images once.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .nearest import accuracies

RATES = (*(base * 10.0**power for power in (-5, -4, -3, -2) for base in (1.0, 2.0, 5.0)), 0.1)  # for 256 images
MOMENTUM = 0.9


class Heads:
    """Linear classifiers on one kind of features (b, c), one for each learning rate, trained by `step`.

    Attributes:
        weight: (heads, c, classes), starts as N(0, 0.01).
        bias: (heads, 1, classes), starts as 0.
    """

    def __init__(self, dim: int, classes: int, batch_size: int, *, rates: tuple[float, ...] = RATES, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        start = 0.01 * torch.randn(dim, classes, generator=generator)
        self.rates = rates
        self.largest = torch.tensor(rates)[:, None, None] * (batch_size / 256)
        self.weight = start.repeat(len(rates), 1, 1)
        self.bias = torch.zeros(len(rates), 1, classes)
        self.momenta = [torch.zeros_like(part) for part in (self.weight, self.bias)]

    def logits(self, features: Tensor) -> Tensor:
        """(b, c) -> (heads, b, classes)"""
        return features @ self.weight + self.bias

    def step(self, features: Tensor, labels: Tensor, step: int, total: int) -> None:
        """One step of every head; the gradient of the mean cross entropy is (softmax - one-hot) / b."""
        error = self.logits(features).softmax(-1)
        error -= F.one_hot(labels, error.shape[-1])
        error /= len(labels)
        rate = self.largest * 0.5 * (1 + math.cos(math.pi * step / total))
        gradients = (features.mT @ error, error.sum(1, keepdim=True))
        for part, momentum, gradient in zip((self.weight, self.bias), self.momenta, gradients, strict=True):
            momentum.mul_(MOMENTUM).add_(gradient)
            part.sub_(rate * momentum)

    def scores(self, features: Tensor, labels: Tensor) -> list[float]:
        """Top-1 of each head; one whose numbers are not finite has 0."""
        return [
            accuracies(logits, labels)["top1"] if bool(logits.isfinite().all()) else 0.0 for logits in self.logits(features)
        ]


def best_head(heads: dict[str, Heads], held: dict[str, Tensor], labels: Tensor) -> tuple[str, int, list[dict[str, Any]]]:
    """The feature set and the number of the head that is best on the part kept back, the first of equals, and all of them."""
    rows: list[dict[str, Any]] = [
        {"features": name, "rate": rate, "held_out": score}
        for name, each in heads.items()
        for rate, score in zip(each.rates, each.scores(held[name], labels), strict=True)
    ]
    best = max(range(len(rows)), key=lambda number: rows[number]["held_out"])
    name = rows[best]["features"]
    return name, heads[name].rates.index(rows[best]["rate"]), rows
