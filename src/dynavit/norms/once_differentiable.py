"""Backward passes that are not to be differentiated again: to ask for it is an error, not a wrong number.

torch's decorator of this name marks the gradients it returns so that `.backward()` fails. `torch.autograd.grad` looks past the
mark where there is another way to the input, and returns the derivative along that way alone.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

Backward = Callable[..., tuple[Any, ...]]


def once_differentiable(why: str) -> Callable[[Backward], Backward]:
    """Decorator of the `backward` of an autograd function, which is then run without recording.

    Args:
        why: the error's message: what has no second derivative, and what does.
    """

    def decorate(backward: Backward) -> Backward:
        @functools.wraps(backward)
        def wrapped(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            if not torch.is_grad_enabled():  # create_graph=False
                return backward(ctx, *grads)
            with torch.no_grad():
                results = backward(ctx, *grads)
            # The gradients depend on everything that the backward pass read.
            inputs = (*grads, *ctx.saved_tensors)
            return _Refusing.apply(why, len(inputs), *inputs, *results)

        return wrapped

    return decorate


class _Refusing(torch.autograd.Function):
    """Passes what follows `inputs` tensors through; to differentiate it by those is an error."""

    @staticmethod
    def forward(ctx: Any, why: str, inputs: int, *tensors: Any) -> tuple[Any, ...]:
        ctx.why = why
        return tensors[inputs:]

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(ctx.why)
