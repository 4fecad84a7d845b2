"""What travels from a loader to a task.

One optimiser step works on a global batch. It is cut into a part for each process and each of those into micro-batches, so a
step is a list of `Batch`; evaluation gets one `Batch` at a time. Parts may be unequal when the last batch of an epoch is small.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Some samples of a step.

    Attributes:
        inputs: (b, ...) what the model takes.
        targets: (b,) class numbers, or (b, classes) probabilities after mixing.
        index: (b,) numbers of the samples in their data set.
        count: how many of them count. 0: there was nothing left for this process, and it got one borrowed sample, so that all
            processes run the same number of forward and backward passes; a task gives it no weight.
        step_count: samples of the whole step, over all processes and micro-batches.
        broken: one message for each sample that could not be read and was left out.
    """

    inputs: Tensor
    targets: Tensor
    index: Tensor
    count: int
    step_count: int
    broken: list[str] = field(default_factory=list)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Batch":
        """The same batch elsewhere; `dtype` is for the inputs if those are floating-point numbers."""
        inputs = self.inputs.to(device, dtype if self.inputs.is_floating_point() else None, non_blocking=True)
        return replace(self, inputs=inputs, targets=self.targets.to(device, non_blocking=True), index=self.index.to(device))
