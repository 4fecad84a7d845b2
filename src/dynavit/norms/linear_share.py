"""A share of a mixture that is a parameter itself, so that it can begin at exactly 0 or 1 and learn from there.

A sigmoid has no slope where it is 1. A clamped number has one at its ends, but none once a step has led it out of [0, 1]. So
gradients pass as if nothing were clamped, and in training the parameter is set back to the nearest end before it is used: a
projected step. The gradient itself is not touched, so that parts of a batch, in whatever processes, add up to the whole's.

Under `fully_shard` a forward call sees a copy of the parameter, and what is set back there is lost. Our training loop therefore
projects after each step of the optimiser too, through `commit_statistics`.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .transforms import needs_plain_operations


def linear_share(raw: Tensor, dtype: torch.dtype, training: bool) -> Tensor:
    """The share in [0, 1] that a learned number stands for, any shape.

    >>> raw = torch.nn.Parameter(torch.tensor([1.0, 1.2, 0.3]))
    >>> linear_share(raw, torch.float32, training=True)
    tensor([1.0000, 1.0000, 0.3000], grad_fn=<AddBackward0>)
    >>> raw.data
    tensor([1.0000, 1.0000, 0.3000])
    """
    project_share(raw, training)
    raw = raw.to(dtype)
    return raw + (raw.clamp(0, 1) - raw).detach()


def project_share(raw: Tensor, training: bool) -> None:
    """Set a learned share back to the nearest end of [0, 1], if this call may change it."""
    if training and raw.requires_grad and torch.is_grad_enabled() and not needs_plain_operations():
        with torch.no_grad():
            raw.clamp_(0, 1)


class LinearShares(nn.Module):
    """The part of a norm that has logits, `mean_logit` and `var_logit`, until it is started at an end of its mixture, or none
    from the beginning (`shares="linear"`).

    From then on it has parameters `mean_<linear>` and `var_<linear>` in their place. Stands in front of the norm's other bases.
    """

    linear: str  # what the shares are called
    mixing_parameters: tuple[str, ...]

    def linear_shares(self, logit: Tensor) -> Tensor:
        """The shares that logits stand for, in the shape of the parameters that take their place."""
        raise NotImplementedError

    def choose_shares(self, kind: str) -> None:
        """What the layer's option `shares` says, before its parameters are started."""
        if kind not in ("logit", "linear"):
            raise ValueError(f"{type(self).__name__}: shares are learned as 'logit' or 'linear'; got {kind!r}")
        if kind == "linear":
            self.make_shares_linear()

    @property
    def can_be_exact(self) -> bool:
        """Whether its shares are linear, so that an end of the mixture can be had and left again."""
        return any(True for _ in self._linear_parameters())

    def make_shares_linear(self) -> None:
        for moment in ("mean", "var"):
            logit: nn.Parameter | None = getattr(self, f"{moment}_logit")
            if logit is not None:
                shares = nn.Parameter(self.linear_shares(logit.detach()), logit.requires_grad)
                setattr(self, f"{moment}_{self.linear}", shares)
                setattr(self, f"{moment}_logit", None)
        self.mixing_parameters = tuple(name.replace("_logit", f"_{self.linear}") for name in self.mixing_parameters)

    def commit_statistics(self) -> None:
        """Set shares that a step of the optimiser has led out of [0, 1] back to the nearest end."""
        with torch.no_grad():
            for _, parameter in self._linear_parameters():
                if parameter.requires_grad:
                    parameter.clamp_(0, 1)
        rest = getattr(super(), "commit_statistics", None)
        if rest is not None:
            rest()

    def _linear_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for moment in ("mean", "var"):
            parameter = getattr(self, f"{moment}_{self.linear}", None)
            if parameter is not None:
                yield moment, parameter

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        """Weights of before this parametrisation, whose exact start was a logit of 40, become shares."""
        for moment, _ in self._linear_parameters():
            old, new = f"{prefix}{moment}_logit", f"{prefix}{moment}_{self.linear}"
            if old in state_dict and new not in state_dict:
                state_dict[new] = self.linear_shares(state_dict.pop(old))
        super()._load_from_state_dict(state_dict, prefix, *args)
