"""Identities of DTN on padded sequences: what it is at the ends of its options, and its symmetries."""

import pytest
import torch
import torch.nn.functional as F

from dynavit.norms import create_norm
from norms.dtn_cases import assert_close, error, layer, run, tokens

LENGTHS = [40, 17, 1]
MASK = torch.arange(40)[None] < torch.tensor(LENGTHS)[:, None]
EXACT = 1e-11


def with_position(norm, a0, a1):
    with torch.no_grad():
        norm.position[:, 0], norm.position[:, 1] = torch.as_tensor(a0), torch.as_tensor(a1)
    return norm


def sequence_layer(a0=0.0, a1=0.0, **options):
    return with_position(layer(6, 2, ndim=1, **options), a0, a1)


@pytest.mark.parametrize("kernel", ["dense", "band"])
def test_flat_weights_and_no_share_of_its_own_is_masked_instance_norm(way, kernel):
    norm = sequence_layer(kernel=kernel, radius=40, fixed_mean_lambda=0.0, fixed_var_lambda=0.0, **way)
    other = create_norm("in", 6, dtype=torch.float64)
    with torch.no_grad():
        other.weight.copy_(norm.weight), other.bias.copy_(norm.bias)
    x = tokens(3, 40, 6)
    assert error(norm(x, mask=MASK).detach(), other(x, mask=MASK).detach()) <= EXACT


@pytest.mark.parametrize("kernel", ["dense", "band"])
def test_only_its_own_share_is_layer_norm(way, kernel):
    norm = sequence_layer(-1.0, 1.0, kernel=kernel, radius=4, fixed_mean_lambda=1.0, fixed_var_lambda=1.0, **way)
    x = tokens(3, 40, 6)
    expected = F.layer_norm(x, (6,), norm.weight, norm.bias) * MASK[..., None]
    assert error(norm(x, mask=MASK).detach(), expected.detach()) <= EXACT


def test_a_band_wider_than_the_sequence_is_dense(way):
    """Values and gradients, whatever the kernel: it grows outwards in one head."""
    options = {"a0": [-0.3, 0.01], "a1": [0.5, -0.2], **way}
    dense, band = (sequence_layer(kernel=kernel, radius=40, **options) for kernel in ("dense", "band"))
    x = tokens(3, 40, 6)
    assert_close(run(band, x, mask=MASK), run(dense, x, mask=MASK), EXACT)


def test_a_window_of_equal_weights_is_a_moving_average(way):
    """By prefix sums of x and x² over the real tokens within the radius."""
    radius, x = 3, tokens(3, 40, 6)
    norm = layer(6, 2, ndim=1, average="window", radius=radius, fixed_mean_lambda=0.0, fixed_var_lambda=0.0, **way)
    y = norm(x, mask=MASK).detach()
    for row, length in enumerate(LENGTHS):
        sums = F.pad(torch.stack([x[row, :length], x[row, :length].square()]).cumsum(1), (0, 0, 1, 0))
        for place in range(length):
            low, high = max(place - radius, 0), min(place + radius + 1, length)
            first, second = (sums[:, high] - sums[:, low]) / (high - low)
            expected = (x[row, place] - first) / (second - first.square() + 1e-5).sqrt() * norm.weight + norm.bias
            assert error(y[row, place], expected.detach()) <= 1e-9


def test_reversing_a_sequence_and_its_slopes_reverses_the_output(way):
    x = tokens(2, 50, 6)
    norm, mirrored = (sequence_layer([-1.0, 0.02], a1, kernel="band", radius=5, **way) for a1 in ([2.0, -0.3], [-2.0, 0.3]))
    assert error(norm(x).detach(), mirrored(x.flip(1)).flip(1).detach()) <= EXACT


@pytest.mark.parametrize("kernel", ["dense", "band"])
def test_the_class_token_is_layer_normed_and_seen_by_nobody(way, kernel):
    norm = sequence_layer(-1.0, 0.5, kernel=kernel, radius=5, num_prefix_tokens=1, **way)
    x, mask = tokens(3, 41, 6), F.pad(MASK, (1, 0), value=True)
    y = norm(x, (40,), mask)
    assert error(y[:, 0].detach(), F.layer_norm(x[:, 0], (6,), norm.weight, norm.bias).detach()) <= EXACT
    moved = torch.cat([1e3 + x[:, :1], x[:, 1:]], 1)
    assert torch.equal(norm(moved, (40,), mask)[:, 1:], y[:, 1:])


@pytest.mark.parametrize(("a0", "a1"), [(-1.0, 80.0), (0.01, 0.0), (-1e-3, 0.0), (-4.0, 0.0)])
@pytest.mark.parametrize("kernel", ["dense", "band"])
def test_kernels_that_break_other_ways_are_finite_and_exact_in_single_precision(way, kernel, a0, a1):
    """Centres 40 tokens away, weights that grow outwards, wide and narrow ones."""
    options = {"kernel": kernel, "radius": 8, **way}
    double = sequence_layer(a0, a1, **options)
    single = with_position(layer(6, 2, ndim=1, dtype=torch.float32, **options), a0, a1)
    single.load_state_dict({name: value.float() for name, value in double.state_dict().items()})
    x = tokens(3, 40, 6, dtype=torch.float32)
    exact, found = run(double, x.double(), mask=MASK), run(single, x, mask=MASK)
    assert all(value.isfinite().all() for value in found.values())
    assert error(found["y"].double(), exact["y"]) <= 1e-5


def test_weights_are_zero_or_normal_numbers():
    """Subnormal ones slow products down fifty times."""
    from dynavit.norms.dtn.kernels import kernel_cut, offset_kernel

    offset = torch.arange(-16, 17, dtype=torch.float64)[None]
    a0, a1 = torch.tensor([-1.0, -4.0, -0.3]), torch.tensor([7.0, 0.0, 0.1])
    weights = offset_kernel(a0, a1, offset, offset == offset, kernel_cut(torch.float32)).float()
    assert ((weights == 0) | (weights >= torch.finfo(torch.float32).tiny)).all() and (weights == 0).any()
