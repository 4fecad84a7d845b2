"""Parts that the tile kernels share.

Grids are walked in patches of STRIP rows x STRIP columns. The numbers of a patch are held in two orders: columns first,
(STRIP, STRIP * BLOCK), for products along the columns, and rows first, for products along the rows; channels run fastest.
"""

import triton
import triton.language as tl


@triton.jit
def tile_of(program, cols, C: tl.constexpr, D: tl.constexpr, STRIP: tl.constexpr, BLOCK: tl.constexpr):
    """What a program has to do: sample, group of columns, number of its tile among the channels, head, first channel therein.

    Tiles beside each other in memory belong to programs beside each other.
    """
    BLOCKS: tl.constexpr = (D + BLOCK - 1) // BLOCK  # of one head
    TILES: tl.constexpr = C // D * BLOCKS
    groups = tl.cdiv(cols, STRIP)
    sample = (program // (groups * TILES)).to(tl.int64)
    tile = program % TILES
    return sample, program // TILES % groups, tile, tile // BLOCKS, tile % BLOCKS * BLOCK


@triton.jit
def reference_of(patches, real, sample, C: tl.constexpr):
    """A number near which the sample lies, so that differences from it keep their digits: its first (real) patch, channel 0."""
    first = 0
    if real is not None:
        first = tl.load(real + 2 * sample + 1)
    return tl.load(patches + first * C)


@triton.jit
def centre_of(sums, real, sample, tokens, channel, own, C: tl.constexpr, SPAN: tl.constexpr):
    """(BLOCK,) means over the (real) tokens, relative to the reference, from the partial sums of `token_moments`."""
    blocks = tl.cdiv(tokens, SPAN)
    total = tl.zeros(channel.shape, sums.dtype.element_ty)
    for first in range(0, blocks, 16):
        n = first + tl.arange(0, 16)[:, None]
        part = tl.load(sums + (sample * blocks + n) * C + channel[None, :], mask=(n < blocks) & own[None, :], other=0.0)
        total += tl.sum(part, 0)
    count = tokens
    if real is not None:
        count = tl.load(real + 2 * sample)
    return total / tl.where(count > 0, count, 1)


@triton.jit
def turned(z, STRIP: tl.constexpr, BLOCK: tl.constexpr):
    """Columns first to rows first, or back: (STRIP, STRIP * BLOCK) -> the same shape."""
    return tl.reshape(tl.permute(tl.reshape(z, (STRIP, STRIP, BLOCK)), (1, 0, 2)), (STRIP, STRIP * BLOCK))


@triton.jit
def over_channels(centre, N: tl.constexpr, BLOCK: tl.constexpr):
    """(BLOCK,) -> (1, N * BLOCK), repeated."""
    return tl.reshape(tl.broadcast_to(centre[None, :], (N, BLOCK)), (1, N * BLOCK))


@triton.jit
def load_axis(axes, head, axis: tl.constexpr, which: tl.constexpr, i, j, N: tl.constexpr):
    """P[i, j] along one axis, or one of its derivatives: see `axis_kernels`."""
    return tl.load(axes + (((head * 2 + axis) * 3 + which) * N + i[:, None]) * N + j[None, :])


@triton.jit
def load_patch(
    x, mask, reference, centre, row, col, rows, cols, own, C: tl.constexpr, STRIP: tl.constexpr, BLOCK: tl.constexpr
):
    """Centred tokens of STRIP columns and rows from (row, col) on, columns first, 0 where there is no (real) token."""
    q = col + tl.arange(0, STRIP)[:, None]
    k = tl.arange(0, STRIP * BLOCK)[None, :]
    r, c = row + k // BLOCK, k % BLOCK
    token = r * cols + q
    inside = (q < cols) & (r < rows) & (c < own)
    if mask is not None:
        inside = inside & (tl.load(mask + token, mask=inside, other=0) != 0)
    v = tl.load(x + token * C + c, mask=inside, other=0.0)
    return tl.where(inside, v - reference - over_channels(centre, STRIP, BLOCK), 0.0)


@triton.jit
def average_both(p, z1, z2, PRECISION: tl.constexpr):
    """P z for both statistics."""
    return (
        tl.dot(p, z1, input_precision=PRECISION, out_dtype=p.dtype),
        tl.dot(p, z2, input_precision=PRECISION, out_dtype=p.dtype),
    )


@triton.jit
def column_averages(
    x, mask, axes, reference, centre, head, group, row, rows, cols, own,
    C: tl.constexpr, N: tl.constexpr, STRIP: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Px v and Px v^2, rows first, for the target columns of a group and STRIP rows from `row` on, from all source columns."""
    number = x.dtype.element_ty
    s = tl.arange(0, STRIP)
    z1 = tl.zeros((STRIP, STRIP * BLOCK), number)
    z2 = tl.zeros((STRIP, STRIP * BLOCK), number)
    for col in range(0, cols, STRIP):
        v = load_patch(x, mask, reference, centre, row, col, rows, cols, own, C, STRIP, BLOCK)
        horizontal = load_axis(axes, head, 1, 0, group * STRIP + s, col + s, N)
        z1 = tl.dot(horizontal, v, z1, input_precision=PRECISION, out_dtype=number)
        z2 = tl.dot(horizontal, v * v, z2, input_precision=PRECISION, out_dtype=number)
    return turned(z1, STRIP, BLOCK), turned(z2, STRIP, BLOCK)


@triton.jit
def averages(
    x, mask, axes, reference, centre, head, group, rows, cols, own,
    C: tl.constexpr, N: tl.constexpr, RP: tl.constexpr, STRIP: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """P v and P v^2, (RP, STRIP * BLOCK) rows first, of a group's target columns; and the column averages of the last strip."""
    number = x.dtype.element_ty
    i, s = tl.arange(0, RP), tl.arange(0, STRIP)
    mean = tl.zeros((RP, STRIP * BLOCK), number)
    second = tl.zeros((RP, STRIP * BLOCK), number)
    z1 = tl.zeros((STRIP, STRIP * BLOCK), number)
    z2 = tl.zeros((STRIP, STRIP * BLOCK), number)
    for row in range(0, rows, STRIP):
        z1, z2 = column_averages(
            x, mask, axes, reference, centre, head, group, row, rows, cols, own, C, N, STRIP, BLOCK, PRECISION
        )
        vertical = load_axis(axes, head, 0, 0, i, row + s, N)
        mean = tl.dot(vertical, z1, mean, input_precision=PRECISION, out_dtype=number)
        second = tl.dot(vertical, z2, second, input_precision=PRECISION, out_dtype=number)
    return mean, second, z1, z2
