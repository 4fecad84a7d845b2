"""BigBird's attention in blocks. Zaheer et al. 2020, arXiv 2007.14062; as the Long Range Arena configures it.

Tokens are cut into blocks. The first and the last block attend to everything and are attended by everybody; the others see
them, their neighbours, and a few blocks that are drawn once for each head:

    block i sees {0, i-1, i, i+1, last} and `random` others, in one softmax.

Axes:  b samples, h heads, n blocks, m blocks in between, s = block size, e blocks that one sees, d channels of a head.
"""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..norms.contract import Grid

FULL = 4  # with so few blocks every block sees every other anyway
GATHERED = 1 << 24  # numbers of gathered keys at a time; more would be kept for the backward pass


class BigBirdAttention(nn.Module):
    """Multi-head self-attention in blocks. (b, t, c) -> (b, t, c), t up to `length`.

    Shorter sequences are padded to `length` inside, so that the blocks of a token never depend on its batch. The pattern is
    stored with the weights, and is the same in training and evaluation. There is no dropout on attention weights.

    Args:
        length: tokens of the longest sequence, with its class token.
        block: tokens of a block.
        random: blocks that are drawn.
        random_limit: they are among those of the first so many tokens, as their authors intend.
        seed: of the drawing; models give each layer its own.
    """

    pattern: Tensor

    def __init__(
        self,
        dim: int,
        heads: int,
        length: int,
        *,
        block: int = 64,
        random: int = 3,
        random_limit: int = 1024,
        seed: int = 0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"BigBirdAttention: {dim} channels cannot be split into {heads} heads")
        if block < 1 or random < 0 or random_limit < block:
            raise ValueError(
                f"BigBirdAttention: block={block} is at least 1, random={random} at least 0 and random_limit={random_limit} at "
                "least a block"
            )
        self.heads = self.num_heads = heads
        self.length, self.block, self.blocks = length, block, -(-length // block)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.proj_drop = nn.Dropout(proj_drop)
        drawn = block_pattern(heads, self.blocks, random, min(self.blocks, random_limit // block), seed)
        self.register_buffer("pattern", torch.empty(drawn.shape, dtype=torch.int64))
        self.pattern.copy_(torch.from_numpy(drawn))  # so that it may also be built on no device at all

    def forward(self, x: Tensor, grid: Grid | None = None, mask: Tensor | None = None) -> Tensor:
        b, t, _ = x.shape
        if t > self.length:
            raise ValueError(f"BigBirdAttention: got {t} tokens, was built for {self.length}")
        valid = torch.ones(b, t, dtype=torch.bool, device=x.device) if mask is None else mask
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # each (b, h, t, d)
        if self.blocks <= FULL:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=valid[:, None, None, :])
        else:
            more = self.blocks * self.block - t
            valid = F.pad(valid, (0, more))
            q, k, v = (F.pad(each, (0, 0, 0, more)) for each in (q, k, v))
            y = self._in_blocks(q, k, v, valid)[:, :, :t]
        return self.proj_drop(self.proj(y.transpose(1, 2).flatten(2)))

    def _in_blocks(self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor) -> Tensor:
        """(b, h, n s, d) each, valid (b, n s)."""
        n, s = self.blocks, self.block
        ends = torch.cat([q[:, :, :s], q[:, :, -s:]], 2)  # they see everything
        first, last = F.scaled_dot_product_attention(ends, k, v, attn_mask=valid[:, None, None, :]).split(s, 2)
        q, k, v = (each.unflatten(2, (n, s)) for each in (q, k, v))
        seen = valid.unflatten(1, (n, s))
        middle = q[:, :, 1:-1]
        size = max(1, GATHERED // max(1, k[:, :, 0].numel() * self.pattern.shape[-1]))
        parts = []
        for start in range(0, n - 2, size):
            arguments = middle[:, :, start : start + size], k, v, seen, self.pattern[:, start : start + size]
            if size < n - 2 and torch.is_grad_enabled():
                parts.append(checkpoint(attend_blocks, *arguments, use_reentrant=False))
            else:
                parts.append(attend_blocks(*arguments))
        return torch.cat([first, torch.cat(parts, 2).flatten(2, 3), last], 2)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, {self.blocks} blocks of {self.block}, {self.pattern.shape[-1]} seen by each"


def attend_blocks(q: Tensor, k: Tensor, v: Tensor, valid: Tensor, pattern: Tensor) -> Tensor:
    """Queries (b, h, m, s, d) to the blocks that the pattern (h, m, e) names, -1 for none, of keys (b, h, n, s, d)."""
    head = torch.arange(len(pattern), device=pattern.device)[:, None, None]
    named = pattern.clamp(min=0)
    keys, values = k[:, head, named].flatten(3, 4), v[:, head, named].flatten(3, 4)  # (b, h, m, e s, d)
    allowed = (valid[:, named] & (pattern >= 0)[None, ..., None]).flatten(3)  # (b, h, m, e s)
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=allowed[:, :, :, None, :])


def block_pattern(heads: int, blocks: int, random: int, limit: int, seed: int) -> NDArray[np.int64]:
    """(h, n - 2, 5 + random) blocks that each block between the first and the last sees, each once; -1 fills the rest up.

    Drawn ones are among the first `limit` blocks, neither neighbours nor the first or last. The blocks third and second from
    the end draw from fewer, {1, ..., limit - 5} and {1, ..., limit - 4}, as in the published code. numpy's legacy generator
    keeps its numbers over versions.
    """
    numbers = np.random.RandomState(seed)
    between = range(1, blocks - 1)
    pattern = np.full((heads, max(len(between), 0), 5 + random), -1, dtype=np.int64)
    for head in range(heads):
        for block in between:
            highest = {blocks - 3: limit - 5, blocks - 2: limit - 4}.get(block, min(limit - 1, blocks - 2))
            pool = [other for other in range(1, highest + 1) if abs(other - block) > 1]
            drawn = numbers.permutation(pool)[:random].astype(np.int64).tolist()
            seen = dict.fromkeys([0, block - 1, block, block + 1, blocks - 1, *drawn])
            pattern[head, block - 1, : len(seen)] = list(seen)
    return pattern
