"""Ours against the code of the `[robust]` extra, which is ImageNet-C's but for elastic_transform and JPEG files.

Without frost, which takes photographs.
"""

import numpy as np
import pytest
import torch

from data.corruptions.images import mean_psnr, photos
from dynavit.data.corruptions import CORRUPTIONS, corrupt

DETERMINISTIC = ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression")
# each with the number of images that makes its mean steady; glass_blur is compiled first, which takes seconds
RANDOM = {
    "gaussian_noise": 4,
    "shot_noise": 4,
    "impulse_noise": 4,
    "motion_blur": 8,
    "snow": 8,
    "fog": 16,
    "elastic_transform": 8,
}
SLOW_SEVERITIES = [pytest.param(severity, marks=pytest.mark.slow) for severity in (1, 2, 4, 5)]


def test_everything_but_frost_is_compared():
    assert {*DETERMINISTIC, *RANDOM, "glass_blur", "frost"} == set(CORRUPTIONS)


@pytest.mark.parametrize("severity", [3, *SLOW_SEVERITIES])
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_deterministic_corruptions_agree_in_every_pixel(name, severity):
    for size in ((224, 224), (64, 64), (72, 96)):  # at odd ones pixels lie on the edge of pixelate's boxes, and Pillow rounds
        noise = torch.randint(0, 256, (1, 3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        images = torch.cat([photos(1, *size), noise, torch.full_like(noise, 255)])
        ours = corrupt(images, name, severity, table="extra")
        exact = corrupt(images, name, severity, exact=True)
        assert (ours.int() - exact.int()).abs().max() <= 2
        assert not torch.equal(exact, images)


@pytest.mark.parametrize("severity", [3, *SLOW_SEVERITIES])
@pytest.mark.parametrize("name", RANDOM)
def test_random_corruptions_are_as_strong(name, severity):
    compare_strength(name, severity, RANDOM[name])


@pytest.mark.slow
@pytest.mark.parametrize("severity", range(1, 6))
def test_glass_blur_is_as_strong(severity):
    compare_strength("glass_blur", severity, 4)


def compare_strength(name: str, severity: int, count: int) -> None:
    for side in (224, 64):
        images = photos(4, side, side).repeat(-(-count // 4), 1, 1, 1)
        ours = mean_psnr(images, corrupt(images, name, severity, table="extra"))
        exact = mean_psnr(images, corrupt(images, name, severity, exact=True))
        assert ours == pytest.approx(exact, abs=1)


@pytest.mark.parametrize("name", ["impulse_noise", "fog", "frost"])
def test_exact_corruptions_are_seeded_by_the_sample(name):
    images = photos(1, 40, 48).repeat(3, 1, 1, 1)
    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    whole = corrupt(images, name, 2, exact=True)
    assert np.array_equal(np.random.get_state()[1], before), "numpy's own generator moved"
    assert whole.shape == images.shape and whole.dtype == torch.uint8
    assert torch.equal(corrupt(images[:2], name, 2, index=torch.tensor([2, 0]), exact=True), whole[[2, 0]])
    assert not torch.equal(whole[0], whole[1])
    assert not torch.equal(corrupt(images, name, 2, seed=1, exact=True), whole)
