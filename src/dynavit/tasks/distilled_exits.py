"""A cascade whose earlier exits learn from the last one too, not from the labels alone."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from .early_exit import EarlyExit
from .options import DistilledExitsOptions


class DistilledExits(EarlyExit):
    """`EarlyExit`, where an exit k before the last exit K, with logits z_k, labels y and share a has the loss

        (1 - a) CE(z_k, y) + a T² KL(softmax(z_K / T) || softmax(z_k / T)),

    temperature T (Hinton, Vinyals and Dean 2015, arXiv 1503.02531). The last exit learns from the labels alone: z_K teaches
    without learning to be easy to follow, so no gradient reaches it from there.
    """

    name: ClassVar[str] = "distilled_exits"
    Options: ClassVar[type] = DistilledExitsOptions

    def __init__(
        self,
        model: nn.Module,
        classes: int,
        weights: Sequence[float] | None = None,
        share: float = 0.5,
        temperature: float = 2.0,
    ) -> None:
        super().__init__(model, classes, weights)
        self.share, self.temperature = share, temperature

    @classmethod
    def build(cls, model: nn.Module, data: Any, options: Any) -> "DistilledExits":
        return cls(model, len(data.classes), options.weights, options.share, options.temperature)

    def losses(self, exits: Sequence[Tensor], targets: Tensor) -> list[Tensor]:
        *early, last = super().losses(exits, targets)
        teacher = (exits[-1].detach() / self.temperature).log_softmax(-1)
        for k, loss in enumerate(early):
            student = (exits[k] / self.temperature).log_softmax(-1)
            divergence = F.kl_div(student, teacher, reduction="batchmean", log_target=True)
            early[k] = (1 - self.share) * loss + self.share * self.temperature**2 * divergence
        return [*early, last]
