"""Corruptions by their properties and by formulas written out plainly. Beside it: a comparison with ImageNet-C's code."""

import colorsys
import sys
from io import BytesIO
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from data.corruptions.images import digits, mean_psnr, photos
from dynavit.data.corruptions import CORRUPTIONS, GROUPS, by_name, corrupt
from dynavit.data.corruptions.blur import scatter
from dynavit.data.corruptions.filters import convolve, gaussian, streak, zoom
from dynavit.data.corruptions.random import Numbers
from dynavit.data.corruptions.severities import TABLES

DETERMINISTIC = {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"}


def test_there_are_fifteen():
    assert len(CORRUPTIONS) == 15 and CORRUPTIONS[0] == "gaussian_noise" and CORRUPTIONS[-1] == "jpeg_compression"
    assert [len(names) for names in GROUPS.values()] == [3, 4, 4, 4]
    for table in TABLES.values():
        assert tuple(table.strengths) == CORRUPTIONS and all(len(strengths) == 5 for strengths in table.strengths.values())


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 1, 9, 30), (2, 3, 40, 33)])
def test_images_of_every_size_and_severity(name, shape):
    images = photos(shape[0], *shape[2:], channels=shape[1])
    before = images.clone()
    for table in TABLES:
        for severity in (1, 5):
            result = corrupt(images, name, severity, table=table)
            assert result.shape == images.shape and result.dtype == torch.uint8
        assert not torch.equal(result, images)
    assert torch.equal(images, before)


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("side", [32, 72])
def test_a_sample_is_corrupted_alike_in_every_batch(name, side, monkeypatch):
    images, index = photos(5, side, side), torch.tensor([3, 1_000_000, 7, 0, 4])
    whole = corrupt(images, name, 3, seed=5, index=index)
    assert torch.equal(corrupt(images[[4, 1]], name, 3, seed=5, index=index[[4, 1]]), whole[[4, 1]])
    monkeypatch.setattr(by_name, "_AT_ONCE", 1)  # one image at a time
    assert torch.equal(corrupt(images, name, 3, seed=5, index=index), whole)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_random_numbers_come_from_the_seed_and_the_sample(name):
    image = photos(1, 32, 32)
    results = [
        corrupt(image.repeat(2, 1, 1, 1), name, 2),
        corrupt(image.repeat(2, 1, 1, 1), name, 2, seed=1),
        corrupt(image.repeat(2, 1, 1, 1), name, 2, index=torch.tensor([2, 3])),
    ]
    distinct = {result.numpy().tobytes() for pair in results for result in pair}
    assert len(distinct) == (1 if name in DETERMINISTIC else 6)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_small_severities_grow(name):
    for images in (photos(16, 32, 32), digits(32, 32)):
        psnr = [mean_psnr(images, corrupt(images, name, severity)) for severity in range(1, 6)]
        assert all(mild > severe + 0.1 for mild, severe in pairwise(psnr)), psnr
        assert psnr[0] > 18 and psnr[-1] > 10, "something is left to see"


def test_the_table_follows_the_shorter_side():
    for shape, table in (((64, 80), "small"), ((65, 80), "large")):
        images = photos(1, *shape)
        assert torch.equal(corrupt(images, "contrast", 1), corrupt(images, "contrast", 1, table=table))
    assert not torch.equal(corrupt(images, "contrast", 1), corrupt(images, "contrast", 1, table="small"))


@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_the_large_table_are_stored_as_jpeg(channels):
    images = photos(2, 72, 80, channels=channels)
    for name in ("gaussian_noise", "jpeg_compression"):
        before, after = (corrupt(images, name, 3, table=table) for table in ("extra", "large"))
        for image, stored in zip(before, after, strict=True):
            file = BytesIO()
            Image.fromarray(image.permute(1, 2, 0).squeeze(-1).numpy()).save(file, "JPEG", quality=85)
            assert np.array_equal(stored.permute(1, 2, 0).squeeze(-1).numpy(), np.asarray(Image.open(file)))
        assert not torch.equal(before, after)


@pytest.mark.parametrize("side", [8, 80])
def test_an_empty_batch_stays_empty(side):
    assert corrupt(photos(1, side, side)[:0], "fog", 1).shape == (0, 3, side, side)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gausian_noise", 1), "gaussian_noise"),
        (("fog", 0), "severity 0: it is one of 1, 2, 3, 4, 5"),
        (("fog", 6), "severity 6"),
    ],
)
def test_wrong_names_and_severities(arguments, message):
    with pytest.raises(ValueError, match=message):
        corrupt(photos(1, 8, 8), *arguments)


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (torch.zeros(1, 3, 8, 8), {}, "uint8, these are torch.float32"),
        (photos(1, 8, 8)[0], {}, "not \\(3, 8, 8\\)"),
        (photos(1, 8, 8, channels=2), {}, "not \\(1, 2, 8, 8\\)"),
        (photos(1, 8, 7), {}, "8 px and more, not \\(1, 3, 8, 7\\)"),
        (photos(2, 8, 8), {"index": torch.tensor([1])}, "the 2 samples"),
        (photos(1, 8, 8), {"table": "tiny"}, "Known: extra, large, small"),
        (photos(1, 40, 40), {"table": "small", "exact": True}, "\"extra\" only, not 'small'"),
        (photos(1, 40, 40), {"table": "large", "exact": True}, "\"extra\" only, not 'large'"),
        (photos(1, 40, 31), {"exact": True}, "32 px and more"),
        (photos(1, 40, 40, channels=1), {"exact": True}, "colour images"),
    ],
)
def test_wrong_images_and_options(images, options, message):
    with pytest.raises(ValueError, match=message):
        corrupt(images, "fog", 1, **options)


def test_exact_without_the_extra_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    with pytest.raises(ValueError, match="pip install 'dynavit\\[robust\\]'"):
        corrupt(photos(1, 32, 32), "fog", 1, exact=True)


def numbers(count: int) -> Numbers:
    return Numbers(0, torch.arange(count))


@pytest.mark.parametrize("photons", [3, 60, 500])
def test_shot_noise_is_poisson(photons):
    from dynavit.data.corruptions.noise import shot_noise

    value = torch.tensor([0, 51, 255]).double() / 255
    counts = shot_noise(value.view(1, 3, 1, 1).expand(4, 3, 100, 100), numbers(4), photons) * photons
    assert torch.equal(counts.round(), counts.round().clamp(min=0)) and counts[:, 0].eq(0).all()
    for channel, rate in enumerate((value * photons).tolist()):
        assert counts[:, channel].mean() == pytest.approx(rate, rel=0.02)
        assert counts[:, channel].var() == pytest.approx(rate, rel=0.04)


def test_noise_has_its_strength():
    grey = torch.full((1, 3, 100, 100), 128, dtype=torch.uint8)
    noise = corrupt(grey, "gaussian_noise", 1, table="extra").double() / 255 - 128 / 255
    assert noise.std() == pytest.approx(0.08, rel=0.02) and abs(noise.mean() + 0.5 / 255) < 0.002  # bytes are cut off
    spots = corrupt(grey, "impulse_noise", 5, table="extra")
    for value in (0, 255):
        assert (spots == value).double().mean() == pytest.approx(0.27 / 2, rel=0.05)
    assert (spots == 128).double().mean() == pytest.approx(0.73, rel=0.02)


@pytest.mark.parametrize("reach", [1, 2, 4])
def test_scatter_is_the_loop_over_pixels(reach):
    h, w = 13, 17
    x = torch.arange(2.0 * h * w).view(2, 1, h, w)
    moves = (numbers(2).uniform(2, h, w, stream=9) * 2 * reach).long() - reach
    expected = x.clone()
    for image, (down, right) in zip(expected[:, 0], moves, strict=True):
        for r in range(h - reach, reach, -1):
            for c in range(w - reach, reach, -1):
                image[r, c] = image[r + down[r, c], c + right[r, c]].clone()
    assert torch.equal(scatter(x, numbers(2), reach, stream=9), expected)
    assert not torch.equal(expected, x)


@pytest.mark.parametrize(("border", "mode"), [("edge", "replicate"), ("mirror_without_edge", "reflect")])
def test_convolution_and_borders(border, mode):
    x = torch.rand(2, 3, 9, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    kernel = gaussian(2, 1.5)[:, None] * gaussian(3, 0.8)
    expected = F.conv2d(F.pad(x, (3, 3, 2, 2), mode=mode).flatten(0, 1)[:, None], kernel[None, None]).view_as(x)
    assert torch.allclose(convolve(x, kernel, border), expected, atol=1e-12)


def test_borders_wider_than_the_image():
    x = torch.tensor([1.0, 2.0, 3.0]).double().view(1, 1, 3, 1)
    box = torch.full((9, 1), 1 / 9, dtype=torch.float64)
    seen = {"edge": [1, 1, 1, 1, 1, 2, 3, 3, 3], "mirror": [3, 3, 2, 1, 1, 2, 3, 3, 2]}  # around the first pixel
    for border, values in seen.items():
        assert convolve(x, box, border)[0, 0, 0, 0].item() == pytest.approx(sum(values) / 9)


def test_streaks_follow_the_angle():
    x = torch.zeros(2, 1, 9, 9, dtype=torch.float64)
    x[:, :, 4, 4] = 1
    right, down = streak(x, radius=1, sigma=1.0, angle=torch.tensor([0.0, torch.pi / 2]).double())[:, 0]
    weights = torch.tensor([1, np.exp(-0.5), np.exp(-2)]) / (1 + np.exp(-0.5) + np.exp(-2))
    assert torch.allclose(right[4, 2:5].flip(0), weights) and right.sum() == pytest.approx(1)
    assert torch.allclose(down[2:5, 4].flip(0), weights) and down.sum() == pytest.approx(1)


def test_zoom_stretches_the_middle():
    ramp = torch.arange(12.0).double().expand(1, 1, 12, 12)
    assert torch.equal(zoom(ramp, 1.0), ramp)
    expected = torch.linspace(3, 8, 12).double()  # the middle six pixels
    assert torch.allclose(zoom(ramp, 2.0)[0, 0, 5], expected)


def test_brightness_raises_the_value_of_hsv():
    pixels = torch.tensor([[0, 0, 0], [255, 0, 0], [10, 40, 200], [90, 80, 70], [0, 60, 60]], dtype=torch.uint8)
    images = pixels.T[None, :, :, None].expand(1, 3, 5, 8).repeat(1, 1, 2, 1)
    result = corrupt(images, "brightness", 5, table="small")[0, :, :5, 0].T
    for pixel, bright in zip(pixels.tolist(), result.tolist(), strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*(part / 255 for part in pixel))
        expected = [part * 255 for part in colorsys.hsv_to_rgb(hue, saturation, min(value + 0.3, 1))]
        assert bright == pytest.approx(expected, abs=1)


def test_grey_images_go_through_the_codec():
    image = digits(1, 32)
    file = BytesIO()
    Image.fromarray(image[0, 0].numpy()).save(file, "JPEG", quality=40)
    assert np.array_equal(corrupt(image, "jpeg_compression", 5)[0, 0].numpy(), np.asarray(Image.open(file)))


def test_no_two_pieces_of_ice_are_alike_and_all_are_ice():
    from dynavit.data.corruptions.weather import draw_ice

    for side in (32, 224):
        ice = draw_ice(numbers(6), side, side)
        assert ice.min() >= 0 and ice.max() <= 1
        assert 0.4 < ice.mean() < 0.75 and 0.1 < ice.std() < 0.25  # the photographs: 0.57 and 0.15
        assert len({piece.numpy().tobytes() for piece in ice}) == 6
