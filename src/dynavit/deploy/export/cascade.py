"""A cascade as modules that can be exported: one for each exit, and one that stops by itself.

    exit k:      images, [features], [relations] of the exit before -> logits, [features], [relations] for the next
    early exit:  one image -> logits (1, classes), number of the exit it left at (1,), from 0

An exit takes and gives only what the cascade reuses, in this order.
"""

import torch
from torch import Tensor, nn

from ...models.cascade import Cascade
from ...models.cascade.policy import ExitPolicy
from ...models.cascade.state import ExitState


class ExitPart(nn.Module):
    """Exit number `at` of a cascade by itself."""

    def __init__(self, cascade: Cascade, at: int) -> None:
        super().__init__()
        self.exit, self.at = cascade.exits[at], at
        goes_on = at + 1 < len(cascade.exits)
        reuses = {"features": cascade.reuse.feature, "relations": cascade.reuse.relation}
        names = [name for name, reused in reuses.items() if reused]
        self.takes = names if at else []
        self.gives = names if goes_on else []

    @property
    def input_names(self) -> list[str]:
        return ["images", *self.takes]

    @property
    def output_names(self) -> list[str]:
        # A name may not stand for an input and an output of one graph.
        return ["logits", *(f"next_{name}" for name in self.gives)]

    def forward(self, images: Tensor, first: Tensor | None = None, second: Tensor | None = None) -> tuple[Tensor, ...]:
        taken = dict(zip(self.takes, (first, second), strict=False))
        logits, features, relations = self.exit(
            images, taken.get("features"), taken.get("relations"), keep_relations="relations" in self.gives
        )
        given = {"features": features, "relations": relations}
        return logits, *(given[name] for name in self.gives)


class StoppingCascade(nn.Module):
    """The whole cascade for one image, with the thresholds of a policy inside."""

    def __init__(self, cascade: Cascade, policy: ExitPolicy) -> None:
        super().__init__()
        policy.check_fits(len(cascade.exits))
        self.parts = nn.ModuleList(ExitPart(cascade, at) for at in range(len(cascade.exits)))
        self.policy = policy

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self._from(0, images)

    def _from(self, at: int, images: Tensor, *reused: Tensor) -> tuple[Tensor, Tensor]:
        logits, *given = self.parts[at](images, *reused)
        number = torch.full((1,), at, dtype=torch.int64)
        if at + 1 == len(self.parts):
            return logits, number

        def stop(logits: Tensor, number: Tensor, images: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
            return logits.clone(), number.clone()  # a branch may not return what it was given

        def go_on(logits: Tensor, number: Tensor, images: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
            return self._from(at + 1, images, *given)

        sure = self.policy.confidence(logits).min() >= self.policy.thresholds[at]
        return torch.cond(sure, stop, go_on, (logits, number, images, *given))


def example_inputs(cascade: Cascade, images: Tensor) -> list[list[Tensor]]:
    """The inputs of each exit when these images pass all of them."""
    inputs, state = [], ExitState(0, images)
    with torch.no_grad():
        while state.exit < len(cascade.exits):
            inputs.append([part for part in (state.images, state.features, state.relations) if part is not None])
            _, state = cascade.step(state)
    return inputs
