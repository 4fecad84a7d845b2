"""Samples on their way from a loader to a task.

One optimiser step works on a global batch. It is cut into micro-batches and each of those into a part for each process, so a
step is a list of `Batch`; evaluation gets one `Batch` at a time. Parts may be unequal when the last batch of an epoch is small.
"""

from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

# A tensor, or dicts, lists, tuples and NamedTuples, in any nesting, of tensors and of values of any other kind.
Nested: TypeAlias = Any


@dataclass(frozen=True)
class Batch:
    """Some samples of a step. The loader and the task agree on the form of inputs and targets; nothing in between reads them.

    Attributes:
        inputs: samples as the model takes them. Images: a tensor (b, c, h, w). Others are dicts, say, of token ids (b, t) and
            a mask (b, t), or lists of several views.
        targets: answers that belong to them. Classes: (b,) numbers, or (b, classes) probabilities after mixing. Others are
            lists, say, of boxes, (n, 4) for each image.
        index: (b,) numbers of the samples in their data set.
        count: how many of them count. 0: there was nothing left for this process, and it got one borrowed sample, so that all
            processes run the same number of forward and backward passes; a task gives it no weight.
        step_count: samples of the whole step, over all processes and micro-batches.
        broken: one message for each sample that could not be read and was left out.
        mixed: whether each input is a mixture of several samples, which has no single right answer.
    """

    inputs: Nested
    targets: Nested
    index: Tensor
    count: int
    step_count: int
    broken: list[str] = field(default_factory=list)
    mixed: bool = False

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Batch":
        """The same batch elsewhere. `dtype` is for floating-point numbers in the inputs; targets keep their types."""
        inputs, targets = moved(self.inputs, device, dtype), moved(self.targets, device)
        return replace(self, inputs=inputs, targets=targets, index=self.index.to(device))


def moved(values: Nested, device: torch.device | str, dtype: torch.dtype | None = None) -> Nested:
    """Every tensor in a nesting on the device, with this dtype if its numbers are floating-point. All else stays as it is."""
    if isinstance(values, Tensor):
        return values.to(device, dtype if values.is_floating_point() else None, non_blocking=True)
    if isinstance(values, dict):
        there = copy(values)  # keeps the class of the dict, as OrderedDict
        there.update((key, moved(value, device, dtype)) for key, value in values.items())
        return there
    if isinstance(values, list | tuple):
        items = [moved(value, device, dtype) for value in values]
        if isinstance(values, list):
            return items
        return type(values)(*items) if hasattr(values, "_fields") else tuple(items)
    return values
