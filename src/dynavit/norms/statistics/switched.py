"""Tokens by a mixture of the moments of their token (ln), of their sample's channel (in) and of the batch's channel (bn).

    m = w_0 mean_ln + w_1 mean_in + w_2 mean_bn,   v = w'_0 var_ln + w'_1 var_in + w'_2 var_bn,   r = 1 / sqrt(v + eps)
    y = weight * r * (x - m) + bias

With du = weight * r * dy and dv = -1/2 weight * dy * (x - m) * r^3 each source takes the sum of both over the values that it is
the moment of:

    dx = du - sum_k w_k mean_k(du) + 2 sum_k w'_k mean_k(dv) (x - mean_k)
"""

import torch
from torch import Tensor

from ..fused import Rule
from ..passes import native
from .moments import moments


class Switched(Rule):
    """Inputs: x (b, t, c), weight and bias (c) or None, w and w' (3). Keeps mean and variance of ln (b, t, 1), in (b, 1, c) and
    bn (1, 1, c)."""

    def __init__(self, eps: float) -> None:
        self.eps = eps

    def plain(self, *inputs: Tensor | None) -> Tensor:
        x, weight, bias, w, w_var = inputs
        assert x is not None and w is not None and w_var is not None
        (mean_ln, var_ln, _), (mean_in, var_in, _), (mean_bn, var_bn, _) = (moments(x, dims) for dims in ((2,), (1,), (0, 1)))
        mean = w[0] * mean_ln + (w[1] * mean_in + w[2] * mean_bn)
        var = w_var[0] * var_ln + (w_var[1] * var_in + w_var[2] * var_bn)
        y = (x - mean) * torch.rsqrt(var + self.eps)
        if weight is not None:
            y = y * weight
        return y if bias is None else y + bias

    def forward(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        x, weight, bias, w, w_var = inputs
        assert x is not None and w is not None and w_var is not None
        mean_ln, mean_in = x.mean(2, keepdim=True), x.mean(1, keepdim=True)
        mean_bn = mean_in.mean(0, keepdim=True)
        work = x - mean_ln
        var_ln = work.square_().mean(2, keepdim=True)
        var_in = torch.sub(x, mean_in, out=work).square_().mean(1, keepdim=True)
        var_bn = torch.addcmul(var_in, mean_in - mean_bn, mean_in - mean_bn).mean(0, keepdim=True)
        kept = mean_ln, var_ln, mean_in, var_in, mean_bn, var_bn
        y, inverse = self._centred_and_inverse(x, w, w_var, kept, work)
        y.mul_(inverse)
        if weight is not None:
            y = y.mul_(weight) if bias is None else torch.addcmul(bias, y, weight, out=y)
        return y, *kept

    def backward(self, grad: Tensor, inputs: tuple[Tensor | None, ...], kept: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        x, weight, _, w, w_var = inputs
        assert x is not None and w is not None and w_var is not None
        mean_ln, var_ln, mean_in, var_in, mean_bn, var_bn = kept
        tokens, channels = x.shape[1:]
        work, inverse = self._centred_and_inverse(x, w, w_var, kept, torch.empty_like(x))
        du = grad * inverse
        dv = work.mul_(du)
        dweight = None if weight is None else dv.sum((0, 1))
        if weight is not None:
            du.mul_(weight)
            dv.mul_(weight)
        dv.mul_(inverse.square_())
        u_ln, u_in = du.mean(2, keepdim=True), du.mean(1, keepdim=True)
        v_ln, v_in = dv.mean(2, keepdim=True), dv.mean(1, keepdim=True)  # without the factor -1/2, which meets the 2
        dw = -torch.stack([(u_ln * mean_ln).sum() * channels, (u_in * mean_in).sum() * tokens, (u_in * mean_bn).sum() * tokens])
        dw_var = torch.stack([(v_ln * var_ln).sum() * channels, (v_in * var_in).sum() * tokens, (v_in * var_bn).sum() * tokens])
        v_bn = w_var[2] * v_in.mean(0, keepdim=True)
        slope = w_var[1] * v_in + v_bn
        level = w[1] * u_in + w[2] * u_in.mean(0, keepdim=True) + v_bn * (mean_in - mean_bn)
        torch.sub(x, mean_ln, out=work)
        du.sub_(torch.addcmul(w[0] * u_ln, work, w_var[0] * v_ln, out=work))
        torch.sub(x, mean_in, out=work)
        du.sub_(torch.addcmul(level, work, slope, out=work))
        return du, dweight, grad.sum((0, 1)), dw, dw_var.mul_(-0.5)

    def _centred_and_inverse(
        self, x: Tensor, w: Tensor, w_var: Tensor, kept: tuple[Tensor, ...], work: Tensor
    ) -> tuple[Tensor, Tensor]:
        """x - m in a new tensor and r in `work`."""
        mean_ln, var_ln, mean_in, var_in, mean_bn, var_bn = kept
        mean = w[0] * mean_ln + (w[1] * mean_in + w[2] * mean_bn)
        of_channels = (w_var[1] * var_in + w_var[2] * var_bn).add_(self.eps)
        return torch.sub(x, mean, out=mean), torch.add(w_var[0] * var_ln, of_channels, out=work).rsqrt_()


class NativeSwitched(Switched):
    """The same by C, for tokens that `may_be_native`. Keeps moments of tokens, samples and, last, the batch (2, c)."""

    def forward(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        x, weight, bias, w, w_var = (None if part is None else part.contiguous() for part in inputs)
        assert x is not None
        b, t, c = x.shape
        y, kept = torch.empty_like(x), (x.new_empty(b, t, 2), x.new_empty(2, b, c), x.new_empty(2, c))
        native.run("switched_forward", x, self.eps, x, weight, bias, w, w_var, *kept, y)
        return y, *kept

    def backward(self, grad: Tensor, inputs: tuple[Tensor | None, ...], kept: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        x, weight, bias, w, w_var = (None if part is None else part.contiguous() for part in inputs)
        assert x is not None
        grads = [None if part is None else torch.empty_like(part) for part in (x, weight, bias, w, w_var)]
        native.run("switched_backward", x, self.eps, x, weight, w, w_var, *kept, grad.contiguous(), *grads)
        return tuple(grads)
