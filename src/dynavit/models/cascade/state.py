"""A batch between two exits of a cascade, and the predictions of images that have left."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class ExitState:
    """A batch that waits for an exit, with what that exit reuses.

    `state[index]` are some of its samples in any order (a slice, a mask, or positions), `ExitState.concatenate` joins batches
    that wait for the same exit. Samples do not influence each other.
    """

    exit: int  # index of the exit it waits for, from 0; so many it has passed
    images: Tensor  # (b, in_chans, height, width)
    features: Tensor | None = None  # (b, 1 + n, c), tokens that left the exit before
    relations: Tensor | None = None  # (b, depth * heads, 1 + n, 1 + n), its attention logits

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Tensor | Sequence[int] | slice) -> "ExitState":
        if isinstance(index, int) or (isinstance(index, Tensor) and not index.dim()):
            raise ValueError(f"a state is indexed by positions, a mask or a slice, and stays a batch; got the number {index}")
        if not isinstance(index, Tensor | slice):
            index = torch.tensor(list(index), dtype=torch.long, device=self.images.device)

        def take(part: Tensor | None) -> Tensor | None:
            return None if part is None else part[index]

        return replace(self, images=self.images[index], features=take(self.features), relations=take(self.relations))

    @staticmethod
    def concatenate(states: Sequence["ExitState"]) -> "ExitState":
        """One batch of all samples, in the order given."""
        exits = sorted({state.exit for state in states})
        if len(exits) != 1:
            waiting = ", ".join(f"exit {exit + 1}" for exit in exits) or "none"
            raise ValueError(f"only batches that wait for the same exit can be joined; these wait for {waiting}")

        def join(parts: list[Tensor | None]) -> Tensor | None:
            there = [part for part in parts if part is not None]
            if len(there) not in (0, len(parts)):
                raise ValueError("these batches come from different cascades: not all of them hold the same things to reuse")
            return torch.cat(there) if there else None

        return ExitState(
            exits[0],
            torch.cat([state.images for state in states]),
            join([state.features for state in states]),
            join([state.relations for state in states]),
        )


@dataclass(frozen=True)
class Predictions:
    """One number for each image, in the order of the images."""

    labels: Tensor  # (b,) the most probable class
    confidence: Tensor  # (b,) the policy's
    exit: Tensor  # (b,) index of the exit it left at, as in `cascade.exits`: 0 is exit 1

    def __len__(self) -> int:
        return len(self.labels)
