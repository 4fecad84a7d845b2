"""torch modules as the service runs them: cascades exit by exit, other classifiers as one exit."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...models.cascade import Cascade, ExitState
from ..bundle.prepare import Pixels


class TorchBackend:
    """A model in evaluation mode, on its device and in its precision."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        like = next(model.parameters())
        self.device, self.dtype = like.device, like.dtype

    def begin(self, images: Pixels) -> ExitState:
        there = torch.from_numpy(images).to(self.device, self.dtype)
        return self.model.begin(there) if isinstance(self.model, Cascade) else ExitState(0, there)

    @torch.inference_mode()
    def step(self, state: ExitState) -> tuple[NDArray[np.floating], ExitState | None]:
        if not isinstance(self.model, Cascade):
            return _probabilities(self.model(state.images)), None
        logits, after = self.model.step(state)
        return _probabilities(logits), after if after.exit < len(self.model.exits) else None

    def join(self, states: Sequence[ExitState]) -> ExitState:
        return ExitState.concatenate(states)

    def faults(self) -> list[str]:
        found = [name or type(self.model).__name__ for name, part in self.model.named_modules() if part.training]
        return [f"{found[0]} is in training mode, so answers are random or depend on their company"] if found else []


def _probabilities(logits: Tensor) -> NDArray[np.floating]:
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    return logits.softmax(-1).cpu().numpy()
