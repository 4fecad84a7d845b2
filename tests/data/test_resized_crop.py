"""Crops by matrix products against torch's own resize of each box; boxes against their law."""

import math

import pytest
import torch
import torch.nn.functional as F

from dynavit.data.resized_crop import NUMBERS, TRIES, random_boxes, resized_crops


@pytest.mark.parametrize("size", [(9, 13), (40, 25)])
def test_crops_are_torchs_bicubic_resize_of_each_box(size):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(6, 3, 20, 30, generator=generator, dtype=torch.float64)
    boxes = random_boxes(torch.rand(6, NUMBERS, generator=generator, dtype=torch.float64), (20, 30), (0.1, 1.0))
    mirror = torch.tensor([True, False] * 3)
    found = resized_crops(images, boxes, size, mirror)
    for image, (top, left, height, width), flipped, crop in zip(images, boxes.tolist(), mirror, found, strict=True):
        cut = image[None, :, top : top + height, left : left + width]
        expected = F.interpolate(cut, size, mode="bicubic", antialias=True)[0].clamp(0, 1)
        torch.testing.assert_close(crop, expected.flip(-1) if flipped else expected)


def test_a_large_photograph_is_cut_in_the_same_way():
    image = torch.rand(1, 3, 150, 140, generator=torch.Generator().manual_seed(0))
    box, mirror = torch.tensor([[10, 20, 90, 100]]), torch.tensor([True])
    both = resized_crops(image.expand(2, -1, -1, -1), box.expand(2, -1), (24, 16), mirror.expand(2))
    torch.testing.assert_close(resized_crops(image, box, (24, 16), mirror)[0], both[0], rtol=1e-4, atol=1e-5)


def test_boxes_follow_their_law():
    numbers = torch.rand(4000, NUMBERS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    boxes = random_boxes(numbers, (200, 300), (0.2, 0.6)).double()
    top, left, height, width = boxes.unbind(1)
    assert bool(((top >= 0) & (left >= 0) & (top + height <= 200) & (left + width <= 300)).all())
    area, ratio = height * width / 60_000, (width / height).log()
    assert float(area.min()) > 0.195 and float(area.max()) < 0.61
    assert float(area.mean()) == pytest.approx(0.4, abs=0.01) and float(ratio.mean()) == pytest.approx(0, abs=0.02)
    assert float(ratio.abs().max()) < math.log(4 / 3) + 0.03
    assert float((left / (300 - width)).mean()) == pytest.approx(0.5, abs=0.02)


def test_a_box_that_does_not_fit_is_drawn_again_and_at_last_cut():
    numbers = torch.full((2, NUMBERS), 0.999, dtype=torch.float64)  # the whole area, 4 to 3: wider than a square image
    numbers[1, TRIES + 3] = 0.5  # the fourth try is a square
    boxes = random_boxes(numbers, (60, 60), (1.0, 1.0))
    assert boxes.tolist() == [[8, 0, 52, 60], [0, 0, 60, 60]]
