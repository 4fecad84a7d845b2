"""The first layer in which numbers stopped being finite, by name, so that it need not be searched for."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .sharded import whole_number


class NonFiniteError(ValueError):
    """The loss or its gradient became NaN or infinite."""


def explain(model: nn.Module, rerun: Callable[[], Any], step: int, lr: float) -> NonFiniteError:
    """The error for a step that went wrong, naming the layer it began in.

    Args:
        rerun: the forward pass of the micro-batch again, with the same random numbers.
    """
    where = _bad_parameter(model) or _bad_layer(model, rerun) or _bad_gradient(model) or "the loss itself, after the model"
    return NonFiniteError(
        f"numbers stopped being finite at step {step} (learning rate {lr:.3g}): first in {where}. Try a lower lr, a longer "
        "optim.warmup_epochs, optim.clip=1, or precision float32 or bf16 instead of fp16"
    )


def _bad_parameter(model: nn.Module) -> str | None:
    """Weights that an earlier step spoilt: then every layer after them is a victim."""
    for name, parameter in model.named_parameters():
        if kind := _what(parameter):
            return f"the weights of {name} ({kind}, before this step's forward pass)"
    return None


def _bad_layer(model: nn.Module, rerun: Callable[[], Any]) -> str | None:
    found: list[str] = []

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            # The innermost module comes first: its hook runs before those of the modules around it.
            kind = next((kind for tensor in _tensors(output) if (kind := _what(tensor))), None)
            if kind:
                fed = "not finite either" if any(_what(tensor) for tensor in _tensors(inputs)) else "finite"
                found.append(f"{name or 'the model'} ({type(module).__name__}): its output has {kind}, its input is {fed}")

        return look

    hooks = [module.register_forward_hook(watch(name)) for name, module in model.named_modules()]
    try:
        with torch.no_grad():
            rerun()
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else None


def _bad_gradient(model: nn.Module) -> str | None:
    """Gradients flow backwards: the last layer with a bad one is the first that went wrong."""
    for name, parameter in reversed(list(model.named_parameters())):
        if parameter.grad is not None and (kind := _what(parameter.grad)):
            return f"the gradient of {name} ({kind}), while the forward pass is finite"
    return None


def _what(tensor: Tensor) -> str | None:
    if not tensor.is_floating_point():
        return None
    if bool(whole_number(torch.isnan(tensor).any())):
        return "nan"
    return "inf" if bool(whole_number(torch.isinf(tensor).any())) else None


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
