"""Launches of the Triton kernels: tensors in, tensors out, without autograd. Nothing here reads a value on the host."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels import LEAST_MASS, MASKED_CUT, kernel_cut
from ..math import Layout, Operands
from .configuration import MASS_WARPS, SPAN, TOKEN_WARPS, Plan, blocks
from .gate import kernels
from .partials import Partials


class Kept(NamedTuple):
    """What the forward pass leaves for the backward pass, beside its inputs."""

    moments: Tensor  # (b, t, 2) intra-token mean, relative to the sample's reference, and variance
    sums: Tensor  # (b, blocks, c) partial sums of the tokens, relative to the reference


def forward(operands: Operands, layout: Layout, mask: Tensor | None) -> tuple[Tensor, Kept]:
    """y like x, contiguous. Where `mask` (b, prefix + t) is False, y is 0."""
    call = _Call(operands, layout, mask)
    x, (samples, _, channels), tokens = call.x, call.x.shape, call.plan.tokens
    y, kept = torch.empty_like(x), Kept(x.new_empty(samples, tokens, 2), x.new_empty(samples, blocks(tokens), channels))
    if x.numel():
        with call.device():
            call.token_moments(kept)
            call.forward_tile(y, kept)
            if layout.prefix:
                call.prefix_forward(y)
    return y, kept


def backward(grad: Tensor, kept: Kept, operands: Operands, layout: Layout, mask: Tensor | None) -> tuple[Tensor, ...]:
    """The gradients of x, weight, bias, lam_mean, lam_var and position, each in its operand's dtype.

    Those of weight and bias are empty if there is neither.
    """
    call = _Call(operands, layout, mask)
    x, plan = call.x, call.plan
    grad_x, grad = torch.empty_like(x), grad.to(x.dtype).contiguous()
    block = plan.block(plan.tile.backward_block)
    affine = operands.weight is not None or operands.bias is not None
    partials = Partials(x, plan, block, prefix=layout.prefix > 0, masked=mask is not None, affine=affine)
    if x.numel():
        with call.device():
            call.tile_gradients(grad, grad_x, kept, partials, block)
            call.add_token_gradients(grad_x, kept, partials)
            if layout.prefix:
                call.prefix_backward(grad, grad_x, partials)
    types = ((x if like is None else like).dtype for like in operands[1:6])
    return grad_x, *(part.to(dtype, copy=True) for part, dtype in zip(partials.sums(), types, strict=True))


class _Call:
    """The operands of one call as the kernels take them, and the launches."""

    def __init__(self, operands: Operands, layout: Layout, mask: Tensor | None) -> None:
        self.layout = layout
        self.x = x = operands.x.contiguous()
        others = (None if part is None else part.to(x.dtype).contiguous() for part in operands[1:6])
        self.weight, self.bias, self.lam_mean, self.lam_var, self.position = others
        assert self.lam_mean is not None
        rows, cols = layout.grid
        self.plan = Plan(rows, cols, x.shape[-1], self.lam_mean.shape[0])
        self.samples = x.shape[0]
        self.mask, self.real = None, None
        if mask is not None:
            self.mask = mask.contiguous().view(torch.uint8)
            patches = self.mask[:, layout.prefix :]
            self.real = torch.stack([patches.sum(1), patches.argmax(1)], 1).to(torch.int32)  # how many, and the first
        self.radius = max(layout.grid) if layout.radius is None else layout.radius
        self.cut = kernel_cut(x.dtype) if mask is None else MASKED_CUT
        self.divisor = max(x.shape[-1] - layout.ddof, 1)

    def device(self) -> AbstractContextManager[Any]:
        """Triton launches on the current GPU, which need not be that of the tensors."""
        return torch.cuda.device(self.x.device) if self.x.is_cuda else nullcontext()

    def token_moments(self, kept: Kept) -> None:
        plan, launch = self.plan, kernels().token_moments[(self.samples * blocks(self.plan.tokens),)]
        sizes = (plan.tokens, self.layout.prefix, self.divisor)
        launch(self.x, self.mask, self.real, *kept, *sizes, SPAN=SPAN, **plan.token_sizes(), num_warps=TOKEN_WARPS)

    def axes(self) -> Tensor:
        """The factors of P along rows and columns and their derivatives by the slope and by a_0, (h, 2, 3, n, n)."""
        n, heads = self.plan.axis, self.plan.heads
        axes = self.x.new_empty(heads, 2, 3, n, n)
        launch = kernels().axis_kernels[(heads, 2, n // 16)]
        launch(self.position, axes, *self.layout.grid, self.radius, self.cut, N=n, PART=16, num_warps=4)
        return axes

    def masses(self, axes: Tensor) -> Tensor | None:
        """P m of each head and token, (b, h, t), if there is a mask m."""
        if self.mask is None:
            return None
        plan = self.plan
        mass = self.x.new_empty(self.samples, plan.heads, plan.tokens)
        launch = kernels().masses[(self.samples, plan.heads, plan.groups)]
        sizes = (plan.rows, plan.cols, self.layout.prefix, plan.heads)
        launch(self.mask, mass, axes, *sizes, **plan.mass_sizes(), num_warps=MASS_WARPS, num_stages=1)
        return mass

    def forward_tile(self, y: Tensor, kept: Kept) -> None:
        plan, axes = self.plan, self.axes()
        block = plan.block(plan.tile.forward_block)
        kernels().forward_tile[(self.samples * plan.groups * plan.tiles(block),)](
            *(self.x, self.mask, self.real, self.masses(axes), y, *kept, axes),
            *(self.weight, self.bias, self.lam_mean, self.lam_var),
            *(plan.rows, plan.cols, self.layout.prefix, self.layout.eps, LEAST_MASS),
            **plan.tile_sizes(block),
            num_warps=plan.tile.forward_warps,
            num_stages=1,
        )

    def tile_gradients(self, grad: Tensor, grad_x: Tensor, kept: Kept, partials: Partials, block: int) -> None:
        plan, prefix, axes = self.plan, self.layout.prefix, self.axes()
        programs = self.samples * plan.groups * plan.tiles(block)
        options = plan.tile_sizes(block) | {"num_stages": 1}
        kernels().target_gradients[(programs,)](
            *(self.x, self.mask, self.real, self.masses(axes), grad, grad_x, *kept, axes),
            *(self.weight, self.lam_mean, self.lam_var),
            *(partials.of_tokens, partials.of_masses, partials.of_heads[0], partials.of_channels, partials.columns),
            *(plan.rows, plan.cols, prefix, self.layout.eps, LEAST_MASS, plan.groups + bool(prefix)),
            **options,
            num_warps=plan.tile.target_warps,
        )
        if plan.several_strips:
            kernels().source_gradients[(programs,)](
                *(self.x, self.mask, self.real, grad_x, kept.sums, axes, partials.of_heads[1], partials.columns),
                *(plan.rows, plan.cols, prefix),
                **options,
                num_warps=plan.tile.source_warps,
            )
        if self.mask is not None:
            kernels().mass_gradients[(self.samples, plan.heads, plan.groups)](
                *(self.mask, partials.of_masses, partials.of_positions, axes, plan.rows, plan.cols, prefix, plan.heads),
                **plan.mass_sizes(),
                BLOCKS=plan.tiles(block) // plan.heads,
                num_warps=MASS_WARPS,
                num_stages=1,
            )

    def add_token_gradients(self, grad_x: Tensor, kept: Kept, partials: Partials) -> None:
        plan, grads = self.plan, partials.of_tokens
        launch = kernels().add_token_gradients[(self.samples * -(-plan.tokens // plan.part),)]
        sizes = (plan.tokens, self.layout.prefix, self.divisor, grads.shape[1])
        launch(self.x, self.real, grad_x, kept.moments, grads, *sizes, **plan.token_sizes(), num_warps=TOKEN_WARPS)

    def prefix_forward(self, y: Tensor) -> None:
        launch = kernels().prefix_forward[(self.samples, self.layout.prefix)]
        launch(self.x, y, self.weight, self.bias, *self._prefix_sizes(), **self.plan.channel_sizes(), num_warps=4)

    def prefix_backward(self, grad: Tensor, grad_x: Tensor, partials: Partials) -> None:
        launch, affine = kernels().prefix_backward[(self.samples,)], partials.of_channels
        sizes = (*self._prefix_sizes(), self.plan.groups + 1)
        launch(self.x, grad, grad_x, self.weight, affine, *sizes, **self.plan.channel_sizes(), num_warps=4)

    def _prefix_sizes(self) -> tuple[float, ...]:
        return self.plan.tokens, self.layout.prefix, self.divisor, self.layout.eps
