"""Norms in few passes over the tokens, with a backward pass in closed form; second derivatives are those of the plain formula.

Plain operations make a tensor for every intermediate result and one for its gradient. A norm is short of arithmetic, so that
is what it would spend its time on. A `Rule` writes into few tensors, each several times; autograd cannot look into its backward
pass.
So where derivatives of gradients are wanted, or many gradients at once, the plain formula is differentiated instead.
"""

from typing import Any

import torch
from torch import Tensor

from .transforms import is_batched, needs_plain_operations

_PLAIN = (Tensor, torch.nn.Parameter)


def may_fuse(x: Tensor) -> bool:
    """Whether a call on x (b, t, c) may go by a `Rule`. A compiler fuses the plain formula by itself."""
    return not torch.compiler.is_compiling() and type(x) in _PLAIN and x.numel() > 0 and not needs_plain_operations()


class Rule:
    """A norm as a function of its tokens and parameters, which may be None."""

    def plain(self, *inputs: Tensor | None) -> Tensor:
        """The norm by operations of which torch knows every derivative."""
        raise NotImplementedError

    def forward(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        """The same result, and constants that the backward pass reads: moments."""
        raise NotImplementedError

    def backward(self, grad: Tensor, inputs: tuple[Tensor | None, ...], kept: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        """The gradient of each input, from that of the result; of an input that is None anything."""
        raise NotImplementedError


def fused(rule: Rule, *inputs: Tensor | None) -> tuple[Tensor, ...]:
    """What `rule.forward` returns; the first with derivatives, the rest constants."""
    results: tuple[Tensor, ...] = _Fused.apply(rule, *inputs)
    return results


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rule: Rule, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        y, *kept = rule.forward(*inputs)
        ctx.rule, ctx.count = rule, len(inputs)
        ctx.save_for_backward(*inputs, *kept)
        ctx.mark_non_differentiable(*kept)
        ctx.set_materialize_grads(False)
        return y, *kept

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, *[None] * ctx.count
        saved = ctx.saved_tensors  # once: activation checkpointing makes them anew each time they are asked for
        inputs, kept, needed = saved[: ctx.count], saved[ctx.count :], ctx.needs_input_grad[1:]
        if torch.is_grad_enabled() or is_batched(grad):
            return None, *_differentiated(ctx.rule, grad, inputs, needed)
        grads = ctx.rule.backward(grad, inputs, kept)
        return None, *(own if need else None for own, need in zip(grads, needed, strict=True))


def _differentiated(
    rule: Rule, grad: Tensor, inputs: tuple[Tensor | None, ...], needed: tuple[bool, ...]
) -> list[Tensor | None]:
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        wanted = [part for part, need in zip(inputs, needed, strict=True) if need and part is not None]
        found = iter(torch.autograd.grad(rule.plain(*inputs), wanted, grad, create_graph=again))
    return [next(found) if need else None for need in needed]
