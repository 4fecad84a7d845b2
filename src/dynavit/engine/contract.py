"""What the loop asks of loaders, tasks and evaluators. It knows nothing else about data, models or problems."""

from collections.abc import Iterator
from typing import Protocol

from ..common.batch import Batch
from ..common.task import Evaluator as Evaluator
from ..common.task import Task as Task


class Loader(Protocol):
    """Batches for this process. The same (epoch, step) always gives the same samples, augmented in the same way."""

    steps: int  # in an epoch; the same on every process
    samples: int  # in an epoch, over all processes

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[list[Batch]]:
        """The micro-batches of each step from number `start` on."""
        ...
