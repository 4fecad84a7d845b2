"""Tokens by moments that some of them share: of a channel, of a head or of the batch. Every token counts.

    m = pool(mean over tokens of x),   c = x - m,   v = pool(mean over tokens of c^2),   r = 1 / sqrt(k v + eps)
    y = (weight * r + eta) * c + bias + eta * m                        that is, weight * r * c + bias + eta * x

`pool` takes means over a sample's channel, (b, 1, c), to means over the set that shares moments: the channel itself (instance
norm), the channels of a head (group norm), the samples (batch norm). Each set is as large as the others, so that pool is a
symmetric projection, its own transpose. With g = dy and e = weight * g

    dx = r (e - pool(mean of e)) - k r^3 pool(mean of e c) c + eta g
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..beside import Beside
from ..fused import Rule, fused
from ..passes import may_be_native, native

Pool = Callable[[Tensor], Tensor]


def of_channel(means: Tensor) -> Tensor:
    """Instance norm. (b, 1, c) -> the same."""
    return means


def of_batch(means: Tensor) -> Tensor:
    """Batch norm. (b, 1, c) -> (1, 1, c)."""
    return means.mean(-3, keepdim=True)


def of_head(heads: int) -> Pool:
    """Group norm. (b, 1, c) -> (b, 1, c), the same number for all channels of a head."""

    def pool(means: Tensor) -> Tensor:
        split = means.unflatten(-1, (heads, -1))
        return split.mean(-1, keepdim=True).expand_as(split).flatten(-2)

    return pool


class Standardised(Rule):
    """Inputs: x (b, t, c), weight and bias (c) or None, eta (1) or None. Keeps m and v, (b or 1, 1, c).

    Args:
        correction: k, n / (n - 1) for unbiased variances.
    """

    def __init__(self, pool: Pool, eps: float, correction: float = 1.0) -> None:
        self.pool, self.eps, self.correction = pool, eps, correction

    def plain(self, *inputs: Tensor | None) -> Tensor:
        x, weight, bias, eta = inputs
        assert x is not None
        centred = x - self.pool(x.mean(1, keepdim=True))
        var = self.pool(centred.square().mean(1, keepdim=True))
        y = centred * self._inverse(var)
        if weight is not None:
            y = y * weight
        if bias is not None:
            y = y + bias
        return y if eta is None else y + eta * x

    def forward(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        x, weight, bias, eta = inputs
        assert x is not None
        mean = self.pool(x.mean(1, keepdim=True))
        work = x - mean
        var = self.pool(work.square_().mean(1, keepdim=True))
        scale = self._inverse(var)
        if weight is not None:
            scale = scale * weight
        shift = bias
        if eta is not None:
            scale, shift = scale + eta, eta * mean if bias is None else torch.addcmul(bias, mean, eta)
        centred = torch.sub(x, mean, out=work)
        y = centred.mul_(scale) if shift is None else torch.addcmul(shift, centred, scale, out=work)
        return y, mean, var

    def backward(self, grad: Tensor, inputs: tuple[Tensor | None, ...], kept: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        (x, weight, _, eta), (mean, var) = inputs, kept
        assert x is not None
        inverse = self._inverse(var)
        work = x - mean
        along, total = work.mul_(grad).sum(1, keepdim=True), grad.sum(1, keepdim=True)  # sums of g c and of g, (b, 1, c)
        both = torch.stack([total, along])
        level, slope = self.pool(both if weight is None else both * weight) * (inverse / x.shape[1])
        slope = slope * (inverse.square() * self.correction)
        gain = inverse if weight is None else inverse * weight
        if eta is not None:
            gain = gain + eta
        # c once more: a pass over memory that is at hand costs less than a second tensor.
        centred = torch.sub(x, mean, out=work)
        dx = torch.addcmul(level.neg_(), centred, slope, value=-1, out=work).addcmul_(grad, gain)
        dweight = None if weight is None else (along * inverse).sum((0, 1))
        deta = None if eta is None else torch.addcmul(along, total, mean).sum().view(1)
        return dx, dweight, total.sum((0, 1)), deta

    def _inverse(self, var: Tensor) -> Tensor:
        return torch.rsqrt((var if self.correction == 1.0 else var * self.correction) + self.eps)


class BatchStandardised(Standardised):
    """Moments of the batch, with torch's own backward pass.

    Its forward pass is not used: it adds up the tokens one by one, so that a large mean is lost in the rounding.
    """

    def __init__(self, eps: float) -> None:
        super().__init__(of_batch, eps)

    def backward(self, grad: Tensor, inputs: tuple[Tensor | None, ...], kept: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        (x, weight, _, eta), (mean, var) = inputs, kept
        assert x is not None
        if eta is not None:
            return super().backward(grad, inputs, kept)
        flat, channels = (-1, x.shape[-1]), mean.shape[-1]
        moments = mean.view(channels), self._inverse(var).view(channels)
        dx, dweight, dbias = torch.ops.aten.native_batch_norm_backward(
            grad.reshape(flat), x.reshape(flat), weight, None, None, *moments, True, self.eps, [True, True, True]
        )
        return dx.view(x.shape), dweight, dbias, None


class NativeStandardised(Standardised):
    """The same by C, with or without a LayerNorm beside: + norm_weight * LN(x). For tokens that `may_be_native`.

    Inputs: x, weight, bias, eta, norm_weight (c) or None. Keeps m and v (2, b or 1, c), with LayerNorm those of tokens too.

    Args:
        groups: of channels of a sample that share moments; 0: each channel, over all samples.
        norm_eps: LayerNorm's.
    """

    def __init__(self, pool: Pool, groups: int, eps: float, correction: float = 1.0, norm_eps: float = 0.0) -> None:
        super().__init__(pool, eps, correction)
        self.groups, self.norm_eps = groups, norm_eps

    def plain(self, *inputs: Tensor | None) -> Tensor:
        *own, norm_weight = inputs
        y, x = super().plain(*own), own[0]
        assert x is not None
        return y if norm_weight is None else y + F.layer_norm(x, x.shape[-1:], norm_weight, eps=self.norm_eps)

    def forward(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        x, *parameters = (None if part is None else part.contiguous() for part in inputs)
        assert x is not None
        y, moments = torch.empty_like(x), x.new_empty(2, x.shape[0] if self.groups else 1, x.shape[2])
        tokens = None if parameters[-1] is None else native.token_moments_like(x)
        options = (self.groups, self.eps, self.correction, self.norm_eps)
        native.run("standardised_forward", x, *options, x, *parameters, moments, tokens, y)
        return (y, moments) if tokens is None else (y, moments, tokens)

    def backward(self, grad: Tensor, inputs: tuple[Tensor | None, ...], kept: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        x, weight, bias, eta, norm_weight = (None if part is None else part.contiguous() for part in inputs)
        assert x is not None
        moments, tokens = kept if len(kept) == 2 else (*kept, None)
        grads = [None if part is None else torch.empty_like(part) for part in (x, weight, bias, eta, norm_weight)]
        options, read = (self.groups, self.eps, self.correction), (x, weight, eta, norm_weight, moments, tokens)
        native.run("standardised_backward", x, *options, *read, grad.contiguous(), *grads)
        return tuple(grads)


def standardised(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, pool: Pool, groups: int, eps: float, correction: float = 1.0
) -> Tensor:
    """Tokens x (b, t, c) that may be fused, by the moments of `groups` of each sample's channels, which `pool` pools."""
    if may_be_native(x):
        return fused(NativeStandardised(pool, groups, eps, correction), x, weight, bias, None, None)[0]
    return fused(Standardised(pool, eps, correction), x, weight, bias, None)[0]


def batch_standardised(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eta: Tensor | None, eps: float, beside: Beside | None
) -> tuple[Tensor, Tensor]:
    """The same by moments of the batch, with `beside` added, and these moments (2, c)."""
    if may_be_native(x):
        if weight is not None and weight.dim() == 0:
            weight = weight.expand(x.shape[2])
        norm_weight, norm_eps = (None, 0.0) if beside is None else (beside.weight, beside.eps)
        bias = bias if beside is None else beside.joined_bias(bias)
        y, found, *_ = fused(NativeStandardised(of_batch, 0, eps, norm_eps=norm_eps), x, weight, bias, eta, norm_weight)
        return y, found.view(2, -1)
    y, mean, var = fused(BatchStandardised(eps), x, weight, bias, eta)
    return y if beside is None else beside.added_to(y, x), torch.cat([mean, var]).view(2, -1)
