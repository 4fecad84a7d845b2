"""The Reformer's attention among tokens of like content. Kitaev, Kaiser & Levskaya 2020, arXiv 2001.04451.

Queries are their own keys. Random rotations hash them into buckets; tokens are sorted by bucket and cut into chunks of equal
size, and each token attends to its chunk and the one before it. Several rounds, each with rotations of its own, are averaged by
how much each of them saw.

Two forms: `ReformerAttention`, as the paper has it, and `ArenaReformerAttention`, as the Long Range Arena runs it.

Axes:  b samples, h heads, r rounds, t tokens, n chunks, s tokens of a chunk, d channels of a head.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..norms.contract import Grid

LAST_RESORT = -5e4  # a token's logit for itself: taken only if it sees nothing else


class HashedAttention(nn.Module):
    """What both forms share: projections into heads, hashing, sorted chunks."""

    rotations: Tensor  # (r, h or 1, d, buckets / 2)

    def __init__(self, dim: int, heads: int, length: int, chunk: int, buckets: int, proj_drop: float) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"{type(self).__name__}: {dim} channels cannot be split into {heads} heads")
        if chunk < 1 or buckets < 2 or buckets % 2:
            raise ValueError(f"{type(self).__name__}: chunk={chunk} is at least 1, buckets={buckets} even and at least 2")
        self.heads = self.num_heads = heads
        self.length, self.chunk, self.buckets = length, chunk, buckets
        self.padded_length = -(-length // chunk) * chunk
        self.proj_drop = nn.Dropout(proj_drop)

    def _keep_rotations(self, rounds: int, heads: int, channels: int, seed: int) -> None:
        """Drawn once and stored with the weights, so that evaluation gives the same twice."""
        generator = torch.Generator(device="cpu").manual_seed(seed)
        drawn = torch.randn(rounds, heads, channels, self.buckets // 2, generator=generator, device="cpu")
        self.register_buffer("rotations", torch.empty(drawn.shape))
        self.rotations.copy_(drawn)

    def split(self, projected: Tensor) -> Tensor:
        """(b, t, c) -> (b, h, padded length, d), zeros behind the end."""
        if projected.shape[1] > self.length:
            raise ValueError(f"{type(self).__name__}: got {projected.shape[1]} tokens, was built for {self.length}")
        x = projected.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return F.pad(x, (0, 0, 0, self.padded_length - x.shape[2]))

    def buckets_of(self, q: Tensor) -> Tensor:
        """(b, h, t, d) -> (b, h, r, t): the largest of the rotated numbers and their opposites. No gradient."""
        rotated = torch.einsum("bhtd,rhdn->bhrtn", q.detach(), self.rotations.to(q.dtype).expand(-1, q.shape[1], -1, -1))
        return torch.cat([rotated, -rotated], -1).argmax(-1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, buckets: Tensor, valid: Tensor | None) -> Tensor:
        """(b, h, t, d) each, buckets (b, h, r, t), valid (b, t) -> (b, h, t, d)."""
        t = q.shape[2]
        at = torch.arange(t, device=q.device)
        order = (buckets * t + at).argsort(-1)  # by bucket, then by place
        rounds = order.shape[2]

        def sorted_chunks(x: Tensor) -> Tensor:  # (b, h, t, d) -> (b, h, r, n, s, d)
            index = order[..., None].expand(-1, -1, -1, -1, x.shape[-1])
            return x[:, :, None].expand(-1, -1, rounds, -1, -1).gather(3, index).unflatten(3, (-1, self.chunk))

        place = order.unflatten(-1, (-1, self.chunk))  # (b, h, r, n, s)
        queries, keys, values = sorted_chunks(q), _with_previous(sorted_chunks(k)), _with_previous(sorted_chunks(v))
        key_place = _with_previous(place)
        itself = place[..., :, None] == key_place[..., None, :]
        logits = self.logits(queries @ keys.mT, itself)
        if valid is not None:
            real = valid[:, None, None].expand_as(order).gather(-1, order).unflatten(-1, (-1, self.chunk))
            # Padding sees itself, so that no row is empty; nobody reads its output.
            logits = logits.masked_fill(~(_with_previous(real)[..., None, :] | itself), -math.inf)
        total = logits.logsumexp(-1, keepdim=True)  # (b, h, r, n, s, 1)
        found = ((logits - total).exp() @ values).flatten(3, 4)  # (b, h, r, t, d)
        back = order.argsort(-1)[..., None]
        found = found.gather(3, back.expand_as(found))
        share = total.flatten(3, 4).gather(3, back).softmax(2)
        return (share * found).sum(2)

    def logits(self, products: Tensor, itself: Tensor) -> Tensor:
        """From products of queries and keys; `itself` marks those of a token with itself."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        chunks = self.padded_length // self.chunk
        return f"heads={self.heads}, {chunks} chunks of {self.chunk}, {self.buckets} buckets, {self.rotations.shape[0]} rounds"


def _with_previous(chunks: Tensor) -> Tensor:
    """(b, h, r, n, s, ...) -> (b, h, r, n, 2 s, ...): each chunk behind the one before it; before the first is the last."""
    return torch.cat([chunks.roll(1, 3), chunks], 4)


class ReformerAttention(HashedAttention):
    """Shared queries and keys of length 1, scaled logits, padding left out. (b, t, c) -> (b, t, c), t up to `length`.

    Shorter sequences are padded to `length` inside. A token attends to itself only if it sees nothing else.

    Args:
        length: tokens of the longest sequence, with its class token.
        chunk: tokens of a chunk.
        rounds: of hashing.
        seed: of the rotations; models give each layer its own.
    """

    def __init__(
        self, dim: int, heads: int, length: int, *, chunk: int = 64, rounds: int = 1, seed: int = 0, proj_drop: float = 0.0
    ) -> None:
        super().__init__(dim, heads, length, chunk, 2 * -(-length // (2 * max(chunk, 1))), proj_drop)
        if rounds < 1:
            raise ValueError(f"ReformerAttention: rounds of hashing are at least 1, got {rounds}")
        self.to_q, self.to_v, self.proj = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self._keep_rotations(rounds, heads, dim // heads, seed)

    def forward(self, x: Tensor, grid: Grid | None = None, mask: Tensor | None = None) -> Tensor:
        b, t, _ = x.shape
        valid = torch.ones(b, t, dtype=torch.bool, device=x.device) if mask is None else mask
        valid = F.pad(valid, (0, self.padded_length - t))
        q, v = self.split(self.to_q(x)), self.split(self.to_v(x))
        # Padding has a bucket of its own behind the others, so it changes no chunk of real tokens.
        buckets = torch.where(valid[:, None, None], self.buckets_of(q), self.buckets)
        y = self.attend(q, F.normalize(q, dim=-1), v, buckets, valid)[:, :, :t]
        return self.proj_drop(self.proj(y.transpose(1, 2).flatten(2)))

    def logits(self, products: Tensor, itself: Tensor) -> Tensor:
        return (products / math.sqrt(self.rotations.shape[2])).masked_fill(itself, LAST_RESORT)


class ArenaReformerAttention(HashedAttention):
    """The Long Range Arena's Reformer: logits *multiplied* by sqrt(d), padding visible, no output projection, one rotation of
    10 buckets for all heads and layers. (b, t, c) -> (b, t, c), t up to `length`.

    With logits 64 times too large a token sees little but itself. Kept because published numbers were made with it.

    Args:
        length: tokens of the longest sequence, with its class token.
        buckets: also the number of chunks.
    """

    def __init__(self, dim: int, heads: int, length: int, *, buckets: int = 10, proj_drop: float = 0.0) -> None:
        super().__init__(dim, heads, length, -(-length // max(buckets, 1)), buckets, proj_drop)
        self.to_q, self.to_v = (nn.Linear(dim, dim, bias=False) for _ in range(2))
        self.padded_length = self.chunk * buckets
        self._keep_rotations(1, 1, dim // heads, 0)  # whatever the layer

    def forward(self, x: Tensor, grid: Grid | None = None, mask: Tensor | None = None) -> Tensor:
        q, v = self.split(self.to_q(x)), self.split(self.to_v(x))
        y = self.attend(q, q, v, self.buckets_of(q), None)[:, :, : x.shape[1]]
        return self.proj_drop(y.transpose(1, 2).flatten(2))

    def logits(self, products: Tensor, itself: Tensor) -> Tensor:
        return products * math.sqrt(self.rotations.shape[2])
