"""Colours of batches against torchvision's functions, image by image."""

import pytest
import torch

from dynavit.common.torchvision_shim import ensure_torchvision
from dynavit.data.colours import blurred, brightened, contrasted, greyed, saturated, solarised, turned_in_hue

ensure_torchvision()

from torchvision.transforms import functional as torchvisions  # noqa: E402


def images(channels=3, n=5, side=12):
    return torch.rand(n, channels, side, side, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (brightened, torchvisions.adjust_brightness),
        (contrasted, torchvisions.adjust_contrast),
        (saturated, torchvisions.adjust_saturation),
    ],
)
def test_factors(ours, theirs):
    x, factors = images(), torch.tensor([0.6, 0.9, 1.0, 1.2, 1.4], dtype=torch.float64)
    for image, factor, found in zip(x, factors, ours(x, factors), strict=True):
        torch.testing.assert_close(found, theirs(image, float(factor)))


def test_hue():
    x, turns = images(), torch.tensor([-0.5, -0.1, 0.0, 0.1, 0.37], dtype=torch.float64)
    for image, turn, found in zip(x, turns, turned_in_hue(x, turns), strict=True):
        torch.testing.assert_close(found, torchvisions.adjust_hue(image, float(turn)), rtol=1e-5, atol=1e-6)
    flat = torch.full((1, 3, 2, 2), 0.5)
    assert turned_in_hue(flat, torch.tensor([0.3])).equal(flat)  # grey has no hue


def test_choices():
    x, chosen = images(), torch.tensor([True, False, True, False, False])
    for image, is_chosen, grey, negative in zip(x, chosen, greyed(x, chosen), solarised(x, chosen), strict=True):
        expected = torchvisions.rgb_to_grayscale(image, 3) if is_chosen else image
        torch.testing.assert_close(grey, expected)
        torch.testing.assert_close(negative, torchvisions.solarize(image, 128 / 255) if is_chosen else image)


def test_blur_is_a_normalised_gaussian_along_both_axes():
    x, radii = images(), torch.tensor([0.0, 0.3, 1.0, 2.0, 0.5], dtype=torch.float64)
    found = blurred(x, radii)
    torch.testing.assert_close(found[0], x[0])
    for image, radius, blurry in zip(x[1:], radii[1:], found[1:], strict=True):
        place = torch.arange(12, dtype=torch.float64)
        kernel = torch.exp(-((place[:, None] - place) ** 2) / (2 * radius**2))
        kernel = kernel / kernel.sum(1, keepdim=True)
        torch.testing.assert_close(blurry, torch.einsum("ij,cjk,lk->cil", kernel, image, kernel))
    assert blurred(torch.ones(1, 1, 6, 6), torch.tensor([1.5])).allclose(torch.ones(1, 1, 6, 6))


def test_grey_images_have_neither_hue_nor_saturation():
    x, numbers = images(1), torch.full((5,), 0.7, dtype=torch.float64)
    assert turned_in_hue(x, numbers).equal(x) and saturated(x, numbers).equal(x) and greyed(x, numbers > 0).equal(x)
