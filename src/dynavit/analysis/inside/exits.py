"""Exits of a cascade: shares of the images that leave at each, its accuracy and its calibration."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...common.right import has_answer, is_right
from ...models.cascade.calibration import released_thresholds
from ...models.cascade.policy import EVERYONE, ExitPolicy
from ...norms.contract import statistics_dtype
from ..measures.reliability import reliability

EQUAL_SHARES = 20  # p of the released grid at which equally many images leave at each exit


class ExitRecorder:
    """To be called with the logits of all exits (each (b, classes)) and the classes (b,), batch after batch."""

    def __init__(self) -> None:
        self.logits: list[Tensor] = []  # (exits, b, classes) each
        self.targets: list[Tensor] = []

    def __call__(self, logits: Sequence[Tensor], targets: Tensor) -> None:
        # In their own precision: a threshold is the confidence of some image, which another precision would move across it.
        self.logits.append(torch.stack([exit.to(statistics_dtype(exit.dtype)) for exit in logits]).cpu())
        self.targets.append(targets.cpu())

    def exits(self, policy: ExitPolicy | None) -> tuple[dict[str, Any], Tensor, Tensor, Tensor]:
        """The numbers behind the figures, without pictures; and exit (from 0), prediction and confidence of each image, (n,).

        Without a policy, thresholds are taken at which equally many of these images leave at each exit.
        """
        logits, targets = torch.cat(self.logits, 1), torch.cat(self.targets)
        if policy is None:
            sure = torch.stack([exit.softmax(-1).amax(-1) for exit in logits])
            found = released_thresholds(sure.numpy(), [EQUAL_SHARES])[0]
            used = ExitPolicy((*found[:-1].tolist(), EVERYONE))
        else:
            policy.check_fits(len(logits))
            used = policy
        confidence = torch.stack([used.confidence(exit) for exit in logits])
        predicted = logits.argmax(-1)
        leaves = torch.stack([used.leaves(exit, at) for at, exit in enumerate(logits)])
        at = leaves.int().argmax(0)  # the first exit whose threshold is reached
        probability = logits.double().softmax(-1).amax(-1)  # also where thresholds are on a margin or an entropy
        correct, answered = is_right(logits, targets), has_answer(logits)
        image = torch.arange(len(targets))
        result = {
            "calibrated": policy is not None,
            "thresholds": [None if t == EVERYONE else t for t in used.thresholds],
            "confidence_kind": used.confidence_kind,
            "shares": (torch.bincount(at, minlength=len(logits)).double() / len(at)).tolist(),
            "accuracy": correct.double().mean(1).tolist(),
            "accuracy_with_exits": float(correct[at, image].double().mean()),
            "reliability": [reliability(p[a], right[a]) for p, right, a in zip(probability, correct, answered, strict=True)],
        }
        return result, at, predicted[at, image], confidence[at, image]
