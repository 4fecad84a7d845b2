"""Softmax attention, in the form that is fastest where it runs.

torch's fused attention keeps no scores, which is right nearly everywhere. In half precision on CPUs its backward pass is slow,
though: forward and backward in bfloat16 take 7.5 times as long as the same products written out with 64 tokens and heads of 24
channels, 2.8 times with 197 and 64 (`benchmarks/cpu_steps.py`, one processor).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

# Scores of a head that may be kept for the gradient, about as many numbers as the MLP keeps. Beyond, memory decides.
KEPT = 256 * 256


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, drop: float = 0.0, scale: float | None = None
) -> Tensor:
    """Queries (b, h, t, d) look at keys and values (b, h, n, d). -> (b, h, t, d)

    `mask`, broadcast to (b, h, t, n), is True where a key may be seen, or a number that is added to the score.
    """
    hides = mask is not None and mask.dtype == torch.bool
    if _fused_is_slow(q, k) and not hides:
        scores = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.transpose(-2, -1)  # (b, h, t, n)
        scores = scores if mask is None else scores + mask.to(scores.dtype)
        return F.dropout(scores.softmax(-1), drop) @ v
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=drop, scale=scale)


def _fused_is_slow(q: Tensor, k: Tensor) -> bool:
    half = q.dtype in (torch.bfloat16, torch.float16)
    return half and q.device.type == "cpu" and torch.is_grad_enabled() and q.requires_grad and q.shape[-2] * k.shape[-2] <= KEPT
