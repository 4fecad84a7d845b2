"""Attention weights, read while the model runs: every softmax, and every fused attention, which is left in place.

A fused call makes the model's output as ever; its weights are computed a second time beside it.

Axes:  b samples (or windows), h heads, q queries, k keys, d channels of a head.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

SOFTMAX = {torch.softmax, torch.special.softmax, Tensor.softmax, F.softmax}


class SeeWeights(TorchFunctionMode):
    """While active, `seen` is called with each softmax over a last axis, as in (b, h, q, k). Results stay as they are."""

    def __init__(self, seen: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        weights: Tensor | None = None
        if func is F.scaled_dot_product_attention:
            weights = fused_weights(*args, **kwargs)
        elif func is F.multi_head_attention_forward:  # of nn.MultiheadAttention; calls inside it are not seen
            weights = func(*args, **{**kwargs, "need_weights": True, "average_attn_weights": False})[1]
        elif func in SOFTMAX:
            dim = args[1] if len(args) > 1 else kwargs.get("dim")
            weights = output if dim in (-1, output.dim() - 1) else None
        if weights is not None:
            self.seen(weights.to(torch.promote_types(weights.dtype, torch.float32)))
        return output


def fused_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(q k^T scale + mask) of torch's scaled_dot_product_attention: (..., h, q, d), (..., h, k, d) -> (..., h, q, k)."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    query, key = query.to(dtype), key.to(dtype)
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    logits = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
    if attn_mask is not None:
        logits = logits.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else logits + attn_mask.to(dtype)
    return logits.softmax(-1)
