"""Costs of the exits of a cascade: counted multiply-adds and measured time, each with all exits before."""

import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from ..models.cascade import Cascade
from ..models.cascade.policy import ExitPolicy
from .device import wait_for
from .flops import count_macs

EXIT_ROUNDS = 9
PREDICTION_ROUNDS = 3


class _UpTo(torch.nn.Module):
    """The cascade as far as one exit, for the counter."""

    def __init__(self, cascade: Cascade, exits: int) -> None:
        super().__init__()
        self.cascade, self.count = cascade, exits

    def forward(self, images: Tensor) -> Tensor:
        state = self.cascade.begin(images)
        for _ in range(self.count):
            logits, state = self.cascade.step(state)
        return logits


def exit_gmacs(cascade: Cascade, image: Tensor) -> list[float]:
    """GMACs of one image, (1, c, h, w), that leaves at each exit."""
    return [count_macs(_UpTo(cascade, exits + 1), image) / 1e9 for exits in range(len(cascade.exits))]


@torch.no_grad()
def exit_milliseconds(cascade: Cascade, images: Tensor) -> list[float]:
    """Milliseconds per image of a batch that leaves at each exit: medians over rounds of all exits in turn."""
    rounds: list[list[float]] = []
    for _ in range(EXIT_ROUNDS + 1):
        state, start, passed = cascade.begin(images), time.perf_counter(), []
        for _ in cascade.exits:
            _, state = cascade.step(state)
            wait_for(images.device)
            passed.append((time.perf_counter() - start) * 1e3 / len(images))
        rounds.append(passed)
    return [statistics.median(column) for column in zip(*rounds[1:], strict=True)]  # the first round warms up


@torch.no_grad()
def prediction_milliseconds(cascade: Cascade, images: Tensor, policies: Sequence[ExitPolicy], batch_size: int) -> list[float]:
    """Milliseconds per image of `predict` on these images, batch by batch, early exit executed.

    One number for each policy: medians over rounds of all policies in turn, so that a busy moment hurts all alike.
    """
    rounds = [[_prediction(cascade, images, policy, batch_size) for policy in policies] for _ in range(PREDICTION_ROUNDS + 1)]
    return [statistics.median(column) for column in zip(*rounds[1:], strict=True)]  # the first round warms up


def _prediction(cascade: Cascade, images: Tensor, policy: ExitPolicy, batch_size: int) -> float:
    wait_for(images.device)
    start = time.perf_counter()
    for batch in images.split(batch_size):
        cascade.predict(batch, policy)
    wait_for(images.device)
    return (time.perf_counter() - start) * 1e3 / len(images)
