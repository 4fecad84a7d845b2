"""What runs a norm: an ordinary call, one of torch.func's transforms, or a tracer of torch.jit."""

import torch
from torch.autograd import forward_ad
from torch.jit._trace import is_tracing


@torch.compiler.assume_constant_result
def is_transformed() -> bool:
    """Whether torch.func (vmap, grad, jvp, ...) runs this call; its transforms forbid to change what a call did not make."""
    return torch._C._are_functorch_transforms_active()


def needs_plain_operations() -> bool:
    """Whether the call is to be made of torch's own operations: torch.func, forward-mode derivatives, torch.jit, torch.export.

    They know no rule for an autograd function or an operator of ours.
    """
    if torch.compiler.is_compiling():
        return torch.compiler.is_exporting() or is_transformed()
    return is_transformed() or forward_ad._current_level >= 0 or is_tracing()


def refuse_transforms(what: str) -> None:
    """Raise unless this call may change a memory. `what` begins the sentence: "PowerNorm in training"."""
    if is_transformed():
        raise NotImplementedError(
            f"{what} moves its statistics, which torch.func's transforms (vmap, grad, jvp, ...) cannot do: call .eval() first, "
            "or differentiate with torch.autograd, one batch at a time"
        )


def need_own_backward(what: str) -> None:
    """Raise where a backward pass of our own would be dropped. `what` begins the sentence: "PowerNorm in training"."""
    if not torch.compiler.is_compiling() and needs_plain_operations():
        raise NotImplementedError(
            f"{what} has a backward pass of its own, which neither torch.jit (also in torch.onnx.export(dynamo=False)) nor "
            "forward-mode derivatives can use: call .eval() first"
        )
