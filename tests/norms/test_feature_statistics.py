"""Ranges that estimate the standard deviation."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynavit.norms.statistics.outlier_guard import FLOOR, guard
from dynavit.norms.statistics.ranges import batch_range, image_ranges, normal_range


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plain_ranges(images: list[torch.Tensor], q: float) -> tuple[list[float], list[float], int, int]:
    """Middle and spread of one channel, image by image; the images have different lengths."""
    middles, spreads = [], []
    for image in images:
        if len(image) == 0:
            continue
        low, high = (float(torch.quantile(image, level)) for level in (q, 1 - q))
        middles.append((low + high) / 2)
        if len(image) > 1:
            # The same quantile of the expected order statistics of a normal sample of this length.
            n, phi = len(image), statistics.NormalDist()
            scores = torch.tensor([phi.inv_cdf((i - 3 / 8) / (n + 1 / 4)) for i in range(1, n + 1)], dtype=torch.float64)
            spreads.append((high - low) / (2 * float(torch.quantile(scores, 1 - q))))
    return middles, spreads, len(middles), len(spreads)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    q=st.sampled_from([0.0, 0.005, 0.1, 0.3]),
    seed=st.integers(0, 1000),
)
def test_ranges_are_those_of_the_real_tokens_of_each_image(lengths, q, seed):
    x = normal(len(lengths), 10, 2, seed=seed) * 3 + 1
    mask = torch.zeros(len(lengths), 10, dtype=torch.bool)
    for row, length in zip(mask, lengths, strict=True):
        row[torch.randperm(10, generator=torch.Generator().manual_seed(seed))[:length]] = True
    found, images = image_ranges(torch.where(mask[..., None], x, 0.0), mask, q)
    for channel in range(2):
        tokens = [image[valid, channel] for image, valid in zip(x, mask, strict=True)]
        middles, spreads, seen, spread_seen = plain_ranges(tokens, q)
        assert images.flatten().tolist() == [seen, spread_seen]
        expected = [math.fsum(values) / max(1, len(values)) for values in (middles, spreads)]
        torch.testing.assert_close(found[:, channel], torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("q", [0.0, 0.005, 0.1])
@pytest.mark.parametrize("tokens", [2, 5, 49, 197])
def test_on_normal_tokens_the_spread_is_the_standard_deviation(tokens, q):
    (_, spread), _ = image_ranges(normal(200, tokens, 50) * 2.5, None, q)
    assert spread.mean().item() == pytest.approx(2.5, rel=0.03)


def test_the_expected_range_of_197_tokens():
    assert normal_range(torch.tensor([197.0])).item() == pytest.approx(2.730, abs=5e-4)
    assert normal_range(torch.tensor([1.0])).item() == 0.0


def test_the_range_of_a_batch_is_that_of_all_its_tokens():
    x, mask = normal(3, 4, 2), torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]]).bool()
    found = batch_range(torch.where(mask[..., None], x, 0.0), mask)
    torch.testing.assert_close(found, torch.stack([x[mask].amin(0), x[mask].amax(0)]))
    assert torch.equal(batch_range(x, torch.zeros_like(mask)), torch.zeros(2, 2, dtype=torch.float64))


@pytest.mark.parametrize("value", [-50.0, -1.0, 0.3, 1.2, 50.0])
def test_the_guard_clips_to_so_many_median_deviations(value):
    window = normal(8, 1, 1, seed=3)
    recent = window.flatten().tolist()
    middle = statistics.median(recent)
    reach = 2.0 * max(statistics.median(abs(number - middle) for number in recent), FLOOR * 0.5)
    found = guard(torch.full((1, 1), value).double(), window, torch.full((1, 1), 0.5).double(), 2.0)
    assert found.item() == pytest.approx(min(max(value, middle - reach), middle + reach))


def test_the_guard_lets_still_statistics_move_a_little():
    found = guard(torch.full((1, 1), 9.0), torch.ones(8, 1, 1), torch.full((1, 1), 4.0), 2.0)
    assert found.item() == pytest.approx(1 + 2 * FLOOR * 4)
