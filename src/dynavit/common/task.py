"""What a problem is, seen from the training loop: forward and loss, and sums for evaluation."""

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor, nn

from .batch import Batch


class Evaluator(Protocol):
    """Adds up over batches, so that processes can add up too."""

    def update(self, batch: Batch) -> None:
        """Run the model on a batch and add what `count` of its samples give."""
        ...

    def totals(self) -> dict[str, Tensor]:
        """Sums so far. The loop adds those of all processes and sets the result with `set_totals`."""
        ...

    def set_totals(self, totals: dict[str, Tensor]) -> None: ...

    def results(self) -> Iterator[tuple[str, float | list[float]]]:
        """(name, value) from the sums. "loss" and the task's `main_metric` are among them."""
        ...


class Task(nn.Module):
    """A model and what is asked of it. `task(batch)` gives {"loss": mean over the batch's samples, other scalars to log}.

    The loop weighs the loss with the batch's share of its step, trains `task.model`'s parameters and saves its state.
    """

    model: nn.Module
    main_metric: str  # by which the best checkpoint is chosen: larger is better

    def evaluator(self) -> Evaluator:
        raise NotImplementedError
