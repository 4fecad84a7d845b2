"""Operations on pixels, against plain loops over single images."""

import itertools

import pytest
import torch

from dynavit.data.memory import canvas_size, erase, normalise, pad, place, resize


def some_images(count=6, channels=3, height=5, width=7):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 256, (count, channels, height, width), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("stored", "wanted", "canvas"), [(28, 32, 32), (8, 8, 8), (8, 11, 11), (8, 12, 8), (32, 224, 32), (32, 28, 32)]
)
def test_small_growth_is_padding(stored, wanted, canvas):
    assert canvas_size((stored, stored), (wanted, wanted)) == (canvas, canvas)
    assert canvas_size((stored, 9), (wanted, 9)) == (canvas, 9)


@pytest.mark.parametrize("canvas", [(5, 7), (7, 8)])
def test_place_moves_images_and_mirrors_them_in_their_place(canvas):
    images = some_images()
    down, right = torch.tensor([0, 2, -2, 4, -9, 1]), torch.tensor([0, -1, 3, -3, 2, 1])
    mirror = torch.tensor([False, True, False, True, True, True])
    placed = place(images, canvas, down, right, mirror)
    assert placed.dtype == torch.uint8
    for i, image in enumerate(images):
        if mirror[i]:
            image = image.flip(2)
        top, left = (canvas[0] - 5) // 2 + down[i], (canvas[1] - 7) // 2 + right[i]
        for row, col in itertools.product(range(canvas[0]), range(canvas[1])):
            inside = 0 <= row - top < 5 and 0 <= col - left < 7
            expected = image[:, row - top, col - left] if inside else torch.zeros(3, dtype=torch.uint8)
            assert torch.equal(placed[i, :, row, col], expected), (i, row, col)


def test_pad_is_place_without_moves():
    images, still = some_images(), torch.zeros(6, dtype=torch.long)
    for canvas in [(5, 7), (7, 10), (6, 8)]:
        assert torch.equal(pad(images, canvas), place(images, canvas, still, still, still.bool()))


def test_normalise_is_the_textbook_formula():
    mean, std = torch.tensor([0.5, 0.3, 0.1]), torch.tensor([0.2, 0.3, 0.4])
    found = normalise(some_images(), mean, std)
    assert found.dtype == torch.float32
    expected = (some_images().double() / 255 - mean.double()[:, None, None]) / std.double()[:, None, None]
    assert (found - expected).abs().max() < 2e-6
    assert (normalise(some_images(), mean.double(), std.double()) - expected).abs().max() < 1e-13


def test_resize_averages_areas_and_interpolates():
    images = torch.arange(16.0).view(1, 1, 4, 4)
    assert torch.equal(resize(images, (2, 2)).flatten(), torch.tensor([2.5, 4.5, 10.5, 12.5]))
    assert resize(images, (4, 4)) is images
    grown = resize(torch.tensor([0.0, 4.0]).view(1, 1, 1, 2).expand(1, 1, 2, 2), (4, 4))
    assert torch.equal(grown[0, 0], torch.tensor([0.0, 1.0, 3.0, 4.0]).expand(4, 4))


def test_erase_clears_the_rectangle_of_the_formula():
    images = torch.ones(40, 2, 16, 12)
    numbers = torch.rand(40, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    erased = erase(images, numbers, 0.5)
    for image, (chosen, area, ratio, down, right) in zip(erased, numbers.tolist(), strict=True):
        expected = torch.ones(2, 16, 12)
        if chosen < 0.5:
            pixels, slope = (0.02 + (1 / 3 - 0.02) * area) * 16 * 12, 0.3 ** (1 - 2 * ratio)
            height, width = (min(max(round((pixels * f) ** 0.5), 1), side) for f, side in ((slope, 16), (1 / slope, 12)))
            top, left = int(down * (16 - height + 1)), int(right * (12 - width + 1))
            expected[:, top : top + height, left : left + width] = 0
        assert torch.equal(image, expected)
    assert images.min() == 1  # the input is left alone
