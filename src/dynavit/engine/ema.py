"""A running average of a model's weights.

    average <- average + (1 - d_n) (weights - average),  d_n = min(decay, (1 + n) / (10 + n)) at update number n = 0, 1, ...

Everything in the model's state is averaged, running statistics too; whole numbers are copied.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .config import EmaConfig
from .sharded import assign, gathered, local


class Ema:
    """The average, which lives on the model's device and is spread over processes as the model is."""

    def __init__(self, model: nn.Module, config: EmaConfig) -> None:
        if not 0.0 < config.decay < 1.0:
            raise ValueError(f"ema.decay is the weight of the past, between 0 and 1; got {config.decay}")
        self.config = config
        self.updates = 0
        self.live: dict[str, Tensor] = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        self.average: dict[str, Tensor] = {name: tensor.clone() for name, tensor in self.live.items()}
        floating = [name for name, tensor in self.live.items() if tensor.is_floating_point()]
        whole_numbers = [name for name in self.live if name not in floating]
        self.averaged = self._pairs(floating)
        self.copied = self._pairs(whole_numbers)

    @torch.no_grad()
    def update(self) -> None:
        decay = self.config.decay
        if self.config.warmup:
            decay = min(decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(*self.averaged, weight=1 - decay)
        if self.copied[0]:
            torch._foreach_copy_(*self.copied)
        self.updates += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model has the average as its weights."""
        average, live = self._pairs(list(self.live))
        kept = [tensor.clone() for tensor in live]
        with torch.no_grad():
            torch._foreach_copy_(live, average)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(live, kept)

    def state(self) -> dict[str, Tensor]:
        """Whole tensors on the CPU."""
        return {name: gathered(tensor) for name, tensor in self.average.items()}

    def load(self, state: dict[str, Tensor], updates: int) -> None:
        for name, tensor in self.average.items():
            if name in state:  # else of an earlier version, as in `Trainer.resume`
                assign(tensor, state[name])
        self.updates = updates

    def _pairs(self, names: list[str]) -> tuple[list[Tensor], list[Tensor]]:
        """The average and the live tensors of these names, as far as this process holds them."""
        return [local(self.average[name]) for name in names], [local(self.live[name]) for name in names]
