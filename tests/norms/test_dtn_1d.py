"""DTN on sequences: the dense kernel, the band, and padding of every length."""

import pytest
import torch
from torch import Tensor, nn

from dynavit.norms import DynamicTokenNorm
from norms import dtn_oracle as oracle
from norms.dtn_cases import assert_close, error, expect, finite, layer, run, tokens

EXACT = 1e-11


def sequence_layer(position: list[list[float]] | None = None, dim: int = 9, heads: int = 3, **options) -> DynamicTokenNorm:
    norm = layer(dim, heads, ndim=1, **options)
    if position is not None:
        with torch.no_grad():
            norm.position.copy_(torch.tensor(position))
    return norm


# [d², d] per head: centred and moved to a side, far outside the band, wide, linear, growing outwards.
EVERY_KIND = [
    [-1.0, 0.0],
    [-1.0, 5.0],
    [-1.0, 80.0],
    [-1.0, -80.0],
    [-0.01, 0.1],
    [0.0, 0.0],
    [0.0, 1.5],
    [0.04, 0.0],
    [0.04, -2.0],
]
# Of these, the kinds whose weights stay comparable over a few tokens, so that leaving some out is no 0/0.
MILD = [[-0.3, 0.0], [-0.01, 0.1], [0.0, 0.0], [0.0, 0.5], [0.01, 0.0]]


# ------------------------------------------------------------------------------------------- dense and banded


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("length", [1, 2, 16, 37])
@pytest.mark.parametrize("prefix", [0, 1])
def test_dense_equals_the_equations(way, heads, length, prefix):
    """Short sequences use the whole (T, T) kernel; the class token stands outside."""
    norm = layer(5 * heads, heads, ndim=1, num_prefix_tokens=prefix, **way)
    x = tokens(2, prefix + length, 5 * heads)
    assert_close(run(norm, x, grid=(length,)), expect(norm, x, (length,)), EXACT)


@pytest.mark.parametrize("length", [1, 7, 8, 15, 16, 17, 63, 64, 65, 130])
def test_band_equals_the_equations(way, length):
    """Softmax over |d| <= 8 for every kind of kernel: shorter than the band, its two ends meeting, and whole tiles."""
    norm = sequence_layer(EVERY_KIND, 18, 9, kernel="band", radius=8, **way)
    x = tokens(2, length, 18)
    assert_close(run(norm, x), expect(norm, x, (length,), radius=8), EXACT)


@pytest.mark.parametrize("length", [15, 16, 17, 20, 24])
def test_the_last_full_window_ends_with_the_sequence(way, length):
    """Weights at -3..4, the largest at 4, so that the last row with all of them looks most at the last token."""
    norm = sequence_layer([[0.0, 5.8]], 4, 1, kernel="band", radius=4, **way)
    x = tokens(2, length, 4)
    assert_close(run(norm, x), expect(norm, x, (length,), radius=4), EXACT)


@pytest.mark.parametrize(("length", "radius"), [(255, None), (256, None), (257, 16), (600, 16)])
def test_the_choice_is_made_by_length(way, length, radius):
    """Dense up to 256 tokens, a band of radius 16 beyond; known from the shape alone."""
    norm = sequence_layer([[-0.01, 0.1], [-1.0, 2.0]], 4, 2, **way)
    x = tokens(1, length, 4)
    assert_close(run(norm, x), expect(norm, x, (length,), radius=radius), EXACT)


def test_the_choice_can_be_made_by_hand(way):
    """`kernel` and `radius` overrule the length."""
    x = tokens(1, 300, 4)
    dense = sequence_layer([[-0.01, 0.1], [-1.0, 2.0]], 4, 2, kernel="dense", **way)
    assert_close(run(dense, x), expect(dense, x, (300,)), EXACT)
    narrow = sequence_layer([[-0.01, 0.1], [-1.0, 2.0]], 4, 2, kernel="band", radius=3, **way)
    assert_close(run(narrow, x[:, :50]), expect(narrow, x[:, :50], (50,), radius=3), EXACT)


def test_a_band_as_wide_as_the_kernel_is_dense(way):
    """At the start (a0 = −1) a radius of 16 cuts off less than rounding: both kernels give the same layer."""
    x = tokens(1, 600, 10)
    band, dense = (DynamicTokenNorm(10, heads=5, ndim=1, kernel=kernel, dtype=x.dtype, **way) for kernel in ("band", "dense"))
    assert_close(run(band, x), run(dense, x), 1e-12)


@pytest.mark.parametrize("average", ["uniform", "window"])
@pytest.mark.parametrize("length", [1, 5, 40, 300])
@pytest.mark.parametrize("masked", [False, True])
def test_averages_without_positions(way, average, length, masked):
    """P = 1/T, and the paper's local InstanceNorm: a band of k = 2 r + 1 equal weights."""
    norm = layer(6, 2, ndim=1, average=average, radius=2 if average == "window" else None, **way)
    x = tokens(2, length, 6)
    valid = padded(2, length, [1 + length // 3, length]) if masked else None
    assert_close(run(norm, x, mask=valid), expect(norm, x, (length,), valid), EXACT)


@pytest.mark.parametrize("kernel", ["dense", "band"])
def test_float32_is_near_float64(way, kernel):
    norm = sequence_layer(EVERY_KIND, 18, 9, kernel=kernel, radius=8, dtype=torch.float32, **way)
    x = tokens(2, 90, 18, dtype=torch.float32)
    assert_close(run(norm, x), expect(norm, x, (90,), radius=8 if kernel == "band" else None), 2e-5)


@pytest.mark.parametrize("kernel", ["dense", "band"])
@pytest.mark.parametrize("masked", [False, True])
def test_an_empty_batch(way, kernel, masked):
    norm = sequence_layer(kernel=kernel, radius=4, **way)
    valid = torch.ones(0, 40, dtype=torch.bool) if masked else None
    found = run(norm, tokens(1, 40, 9)[:0], mask=valid)
    assert found["y"].shape == (0, 40, 9) and all(not found[key].any() for key, _ in norm.named_parameters())


# --------------------------------------------------------------------------------------- padding on the right


def padded(samples: int, length: int, real: list[int]) -> Tensor:
    """The first `real[b]` tokens of sample b are real."""
    assert len(real) == samples
    return torch.arange(length)[None] < torch.tensor(real)[:, None]


RADIUS = 8
LENGTHS = [1, 3, 8, 9, 15, 16, 17, 40, 93, 100]  # below, at and above the radius, twice the radius, and all of it


@pytest.mark.parametrize("kernel", ["dense", "band"])
def test_padding_of_any_length_is_exact(way, kernel):
    """Every kind of kernel, also those whose weight lies wholly outside the real tokens; one batch holds all lengths."""
    norm = sequence_layer(EVERY_KIND, 18, 9, kernel=kernel, radius=RADIUS, **way)
    x, valid = tokens(len(LENGTHS), 100, 18), padded(len(LENGTHS), 100, LENGTHS)
    found = run(norm, x, mask=valid)
    assert_close(found, expect(norm, x, (100,), valid, RADIUS if kernel == "band" else None), EXACT)
    # And as the definition wants: each sample as if it were alone.
    for sample, count in enumerate(LENGTHS):
        alone = norm(x[sample : sample + 1, :count]).detach()
        assert error(found["y"][sample : sample + 1, :count], alone) <= EXACT


@pytest.mark.parametrize("kernel", ["dense", "band"])
def test_samples_of_padding_only(way, kernel):
    """Nothing real: output 0, gradient 0, and the other samples do not notice."""
    norm = sequence_layer(EVERY_KIND, 18, 9, kernel=kernel, radius=RADIUS, num_prefix_tokens=1, **way)
    x, valid = tokens(4, 41, 18), padded(4, 41, [0, 1, 20, 41])  # the second has a class token and nothing else
    found, others = run(norm, x, mask=valid), expect(norm, x[2:], (40,), valid[2:], RADIUS if kernel == "band" else None)
    assert finite(found)
    assert not found["y"][0].any() and not found["x"][0].any() and not found["y"][1, 1:].any()
    torch.testing.assert_close(found["y"][1, 0], nn.functional.layer_norm(x[1, 0], (18,), norm.weight, norm.bias).detach())
    assert error(found["y"][2:], others["y"]) <= EXACT


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_of_the_c_kernel_with_padding(threads):
    """Every sample has kernels of its own length, shared out among the threads."""
    norm = sequence_layer(EVERY_KIND, 18, 9, kernel="band", radius=RADIUS)
    x, valid = tokens(len(LENGTHS), 100, 18), padded(len(LENGTHS), 100, LENGTHS)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found, again = run(norm, x, mask=valid), run(norm, x, mask=valid)
    finally:
        torch.set_num_threads(before)
    assert_close(found, expect(norm, x, (100,), valid, RADIUS), EXACT)
    assert_close(again, found, 0.0)


@pytest.mark.parametrize("total", [15, 16, 17, 31])
def test_padding_on_sequences_about_as_long_as_the_band(way, total):
    """The two border slices touch or overlap."""
    norm = sequence_layer(EVERY_KIND, 18, 9, kernel="band", radius=RADIUS, **way)
    real = [1, total // 2, total - 1, total]
    x, valid = tokens(4, total, 18), padded(4, total, real)
    assert_close(run(norm, x, mask=valid), expect(norm, x, (total,), valid, RADIUS), EXACT)


@pytest.mark.parametrize("kernel", ["dense", "band"])
def test_padding_with_prefix_tokens_and_garbage(way, kernel):
    """ListOps as it is run: a class token in front, padding behind, and anything at all in the padding."""
    norm = sequence_layer(EVERY_KIND, 18, 9, kernel=kernel, radius=RADIUS, num_prefix_tokens=1, **way)
    x, valid = tokens(3, 101, 18), padded(3, 101, [2, 30, 101])
    expected = expect(norm, x, (100,), valid, RADIUS if kernel == "band" else None)
    for garbage in (float("nan"), float("inf"), 1e300):
        found = run(norm, torch.where(valid[..., None], x, garbage), grid=(100,), mask=valid)
        assert_close(found, expected, EXACT)
        assert not found["x"][~valid].any() and not found["y"][~valid].any()


@pytest.mark.parametrize("kernel", ["dense", "band"])
def test_float32_with_padding(way, kernel):
    norm = sequence_layer(EVERY_KIND, 18, 9, kernel=kernel, radius=RADIUS, dtype=torch.float32, **way)
    x, valid = tokens(len(LENGTHS), 100, 18, dtype=torch.float32), padded(len(LENGTHS), 100, LENGTHS)
    expected = expect(norm, x, (100,), valid, RADIUS if kernel == "band" else None)
    assert_close(run(norm, x, mask=valid), expected, 2e-5)


@pytest.mark.parametrize(
    ("way", "kernel"),
    [
        *(("native", "dense"), ("native", "band"), ("torch", "dense"), ("recomputed", "band")),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("torch", "band"), ("recomputed", "dense"))),
    ],
    indirect=["way"],
)
def test_gradcheck_with_padding(way, kernel):
    """The gradients are the derivatives, where border rows and padding meet."""
    norm = sequence_layer([[-0.5, 0.4], [0.02, -0.3]], 4, 2, kernel=kernel, radius=2, **way)
    x, valid = tokens(2, 7, 4).requires_grad_(), padded(2, 7, [3, 7])
    assert torch.autograd.gradcheck(lambda x, *_: norm(x, mask=valid), (x, *norm.parameters()))


# ------------------------------------------------------------------------------------------- masks with holes


def holes(samples: int, length: int, share: float) -> Tensor:
    valid = torch.rand(samples, length, generator=torch.Generator().manual_seed(2)) > share
    valid[:, 0] = True
    return valid


@pytest.mark.parametrize("kernel", ["dense", "band"])
@pytest.mark.parametrize("share", [0.2, 0.6])
def test_holes_with_mild_kernels(way, kernel, share):
    """Real tokens anywhere: each sample's own softmax over them, values and gradients."""
    norm = sequence_layer(MILD, 10, 5, kernel=kernel, radius=RADIUS, **way)
    x, valid = tokens(3, 100, 10), holes(3, 100, share)
    expected = expect(norm, x, (100,), valid, RADIUS if kernel == "band" else None)
    assert_close(run(norm, x, mask=valid), expected, EXACT)


def test_padding_on_the_left(way):
    """It counts as a hole before the first real token."""
    norm = sequence_layer(MILD, 10, 5, kernel="band", radius=RADIUS, **way)
    x = tokens(3, 100, 10)
    valid = padded(3, 100, [5, 60, 100]).flip(1)
    assert_close(run(norm, x, mask=valid), expect(norm, x, (100,), valid, RADIUS), EXACT)


def test_holes_with_any_kernel_in_short_sequences(way):
    """The dense kernel is exact for every mask and every kind of kernel."""
    norm = sequence_layer(EVERY_KIND, 18, 9, **way)
    x, valid = tokens(3, 60, 18), holes(3, 60, 0.5)
    assert_close(run(norm, x, mask=valid), expect(norm, x, (60,), valid), EXACT)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, EXACT), (torch.float32, 2e-5)], ids=["double", "single"])
def test_a_hole_where_the_weights_are(way, dtype, tolerance):
    """Rows before the hole see less and less of what is real, down to e^-49 = 5e-22: still the softmax over it."""
    norm = sequence_layer([[-1.0, 14.0]], 4, 1, kernel="band", radius=RADIUS, dtype=dtype, **way)
    x, valid = tokens(2, 100, 4, dtype=dtype), torch.ones(2, 100, dtype=torch.bool)
    valid[:, 30:60] = False
    found, expected = run(norm, x, mask=valid), expect(norm, x, (100,), valid, RADIUS)
    # Almost all the weight of these rows lies on padding, where its gradient is a difference of equal numbers times d²:
    # in single precision that costs `position` one digit more than anything else.
    assert error(found.pop("position"), expected.pop("position")) <= 10 * tolerance
    assert_close(found, expected, tolerance)


def test_holes_with_any_kernel_in_a_band(way):
    """Rows whose weight on real tokens is above 1e-15 are exact; rows that see none of them (below 1e-30) take LayerNorm's
    statistics; nothing is NaN."""
    norm = sequence_layer(EVERY_KIND, 18, 9, kernel="band", radius=RADIUS, **way)
    x, valid = tokens(3, 100, 18), holes(3, 100, 0.5)
    found = run(norm, x, mask=valid)
    assert finite(found)
    exact = expect(norm, x, (100,), valid, RADIUS)["y"].unflatten(-1, (9, 2))
    alone = nn.functional.layer_norm(x, (18,), norm.weight, norm.bias).detach().unflatten(-1, (9, 2))
    whole = oracle.positional(norm.position.detach(), (100,), radius=RADIUS)
    mass = (whole * valid[:, None, None, :]).sum(-1).transpose(1, 2)  # (b, t, h)
    y = found["y"].unflatten(-1, (9, 2))
    inside = torch.zeros(100, dtype=torch.bool)
    inside[RADIUS : 100 - 2 * RADIUS] = True  # away from border rows, which are exact whatever their mass
    clear, lost = mass > 1e-15, (mass < 1e-32) & inside[None, :, None]
    real = valid[..., None]
    assert (lost & real).any() and (clear & real).any()
    torch.testing.assert_close(y[clear & real], exact[clear & real], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(y[lost & real], alone[lost & real], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kernel", ["dense", "band"])
def test_holes_in_float32_stay_finite(way, kernel):
    """The ratio divides by masses down to 1e-25; gradients too fit into single precision."""
    norm = sequence_layer(EVERY_KIND, 18, 9, kernel=kernel, radius=RADIUS, dtype=torch.float32, **way)
    for share in (0.1, 0.5, 0.9):
        assert finite(run(norm, tokens(3, 100, 18, dtype=torch.float32), mask=holes(3, 100, share)))


# ------------------------------------------------------------------------------------------------ calls, start


def test_grid_is_a_one_tuple():
    """`grid=(T,)` or none; a rectangle belongs to a 2-D layer, a one-tuple to a 1-D layer, and an image map to neither."""
    flat, square, x = layer(6, 2, ndim=1), layer(6, 2), tokens(2, 16, 6)
    assert torch.equal(flat(x, grid=(16,)), flat(x))
    with pytest.raises(ValueError, match=r"grid=\(1, 16\).*ndim=1.*grid=\(length,\).*ndim=2"):
        flat(x, grid=(1, 16))
    with pytest.raises(ValueError, match=r"grid=\(16,\).*ndim=2.*grid=\(rows, cols\).*ndim=1"):
        square(x, grid=(16,))
    with pytest.raises(ValueError, match="16 tokens.*grid 15.*num_prefix_tokens=1"):
        flat(x, grid=(15,))
    with pytest.raises(ValueError, match=r"\(2, 4, 4, 6\).*one-dimensional.*\(batch, tokens, channels\)"):
        flat(x.unflatten(1, (4, 4)))


def test_parameters():
    """2C + 4H numbers: `position` is (H, 2)."""
    shapes = {key: tuple(value.shape) for key, value in DynamicTokenNorm(12, heads=3, ndim=1).state_dict().items()}
    assert shapes == {"weight": (12,), "bias": (12,), "mean_logit": (3,), "var_logit": (3,), "position": (3, 2)}


@pytest.mark.parametrize("length", [256, 600])
def test_trunc_normal_start_is_near_uniform(length):
    """std 0.02 on d² would put all weight on the farthest token; scaled to the length, no token has it all."""
    torch.manual_seed(0)
    norm = DynamicTokenNorm(24, heads=24, ndim=1, init="trunc_normal")
    for token in (0, length // 2):
        P = norm.positional_weights((length,), token)
        torch.testing.assert_close(P.sum(-1), torch.ones(24, dtype=torch.float64))
        reach = length if length <= 256 else min(token, 16) + 17
        spread = (-(P * P.clamp_min(1e-300).log()).sum(-1)).exp() / reach  # share of the tokens that count
        assert P.max() < 0.2 and spread.mean() > 0.5 and spread.min() > 0.05


def test_trunc_normal_start_without_its_scaling():
    """The case it is scaled for: the first of 256 tokens would look at one token alone."""
    position = 0.02 * torch.randn(100, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    unscaled = oracle.positional(position, (256,))[0, :, 0]
    assert (unscaled.amax(-1) > 0.8).double().mean() > 0.3


def test_logs_say_where_heads_look_and_what_the_band_cuts():
    """Centre −a1 / (2 a0) for a0 < 0, and the weight beyond the radius."""
    values = sequence_layer([[-1.0, 5.0], [-0.001, 0.0], [0.1, 0.0]], radius=16).scalars()
    assert values["a0.0"] == -1 and values["centre_x.0"] == 2.5 and "centre_x.2" not in values
    assert values["tail_mass.0"] < 1e-30 and 0.1 < values["tail_mass.1"] < 1 and values["tail_mass.2"] > 0.99
