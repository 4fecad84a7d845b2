"""RoIAlign against six loops, in float64; masks pasted into an image pixel by pixel."""

import math

import pytest
import torch

from dynavit.common.torchvision_shim import ensure_torchvision
from dynavit.models.detection.paste import paste_mask
from dynavit.models.detection.roi_align import level_of, pool_rois, roi_align, roi_align_separable

BOXES = torch.tensor(
    [
        [4.0, 6.0, 40.0, 33.0],
        [0.0, 0.0, 56.0, 48.0],  # the whole map
        [-9.0, -7.0, 12.0, 11.0],  # partly outside
        [40.0, 30.0, 90.0, 70.0],
        [-90.0, -90.0, -60.0, -60.0],  # wholly
        [3.0, 3.0, 4.0, 9.0],
        [20.0, 20.0, 20.5, 20.25],  # smaller than a cell
    ],
    dtype=torch.float64,
)


def bilinear(plane, y, x):
    rows, cols = len(plane), len(plane[0])
    if y < -1 or y > rows or x < -1 or x > cols:
        return 0.0
    y, x = min(max(y, 0.0), rows - 1), min(max(x, 0.0), cols - 1)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, rows - 1), min(left + 1, cols - 1)
    down, over = y - top, x - left
    upper = plane[top][left] * (1 - over) + plane[top][right] * over
    lower = plane[bottom][left] * (1 - over) + plane[bottom][right] * over
    return upper * (1 - down) + lower * down


def loops(features, boxes, bins, scale, samples, aligned):
    planes, found = features.tolist(), torch.zeros(len(boxes), len(features), bins, bins, dtype=torch.float64)
    for k, (x1, y1, x2, y2) in enumerate(boxes.tolist()):
        shift = 0.5 if aligned else 0.0
        left, top, right, bottom = (value * scale - shift for value in (x1, y1, x2, y2))
        width, height = right - left, bottom - top
        if not aligned:
            width, height = max(width, 1.0), max(height, 1.0)
        down = samples or max(math.ceil(height / bins), 1)
        over = samples or max(math.ceil(width / bins), 1)
        for c, plane in enumerate(planes):
            for i in range(bins):
                for j in range(bins):
                    total = 0.0
                    for u in range(down):
                        for v in range(over):
                            y = top + height * (i + (u + 0.5) / down) / bins
                            x = left + width * (j + (v + 0.5) / over) / bins
                            total += bilinear(plane, y, x)
                    found[k, c, i, j] = total / (down * over)
    return found


def some_map(channels=2, rows=12, cols=14):
    return torch.randn(channels, rows, cols, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("samples", [1, 2, None])
def test_both_forms_are_the_loops(samples, aligned):
    features = some_map()
    expected = loops(features, BOXES, 3, 0.25, samples, aligned)
    found = roi_align_separable(features, BOXES, 3, 0.25, samples, aligned=aligned)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    if samples is not None:
        found = roi_align(features, BOXES, 3, 0.25, samples, aligned=aligned)
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    assert not expected[4].any() and expected[2].any()


def test_gradients():
    features = some_map(1, 5, 6).requires_grad_()
    boxes = BOXES[[0, 2, 5]] / 2
    assert torch.autograd.gradcheck(lambda x: roi_align(x, boxes, 2, 0.25), (features,))
    assert torch.autograd.gradcheck(lambda x: roi_align_separable(x, boxes, 2, 0.25), (features,))


def test_constant_maps_stay_constant_and_ramps_give_the_bins_centres():
    inside = torch.tensor([[8.0, 12.0, 40.0, 36.0]], dtype=torch.float64)
    ones = torch.ones(1, 12, 14, dtype=torch.float64)
    assert torch.allclose(roi_align(ones, inside, 4, 0.25), torch.ones(1, 1, 4, 4, dtype=torch.float64))
    ramp = torch.arange(14, dtype=torch.float64).expand(1, 12, 14).contiguous()
    expected = 8 / 4 - 0.5 + 32 / 4 * (torch.arange(4) + 0.5) / 4
    torch.testing.assert_close(roi_align(ramp, inside, 4, 0.25)[0, 0, 0], expected.double(), rtol=1e-12, atol=1e-12)


def test_no_box_gives_none():
    assert roi_align(some_map(), BOXES[:0], 2, 0.25).shape == (0, 2, 2, 2)


def test_torchvisions_own_python_agrees_inside():
    ensure_torchvision()
    from torchvision.ops.roi_align import _roi_align  # what it would compile at its first call

    features, boxes = some_map(), BOXES[[0, 5]]
    rois = torch.cat([torch.zeros(2, 1, dtype=torch.float64), boxes], 1)
    for aligned in (True, False):
        theirs = _roi_align.__wrapped__(features[None], rois, 0.25, 3, 3, 2, aligned)
        torch.testing.assert_close(roi_align(features, boxes, 3, 0.25, aligned=aligned), theirs, rtol=1e-10, atol=1e-10)


def test_levels_change_at_112_224_448():
    sides = torch.tensor([1.0, 111.9, 112.0, 223.9, 224.0, 447.9, 448.0, 5000.0])
    boxes = torch.stack([sides * 0, sides * 0, sides, sides], 1)
    assert level_of(boxes, 4).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert level_of(torch.tensor([[0.0, 0.0, 56.0, 224.0]]), 4).tolist() == [1]  # by area


def test_rois_of_each_image_come_from_their_level():
    maps = [torch.full((2, 1, 64 // 2**at, 64 // 2**at), 10.0 * at) for at in range(4)]
    for level in maps:
        level[1] += 1  # the second image
    small, large = [0.0, 0.0, 20.0, 20.0], [0.0, 0.0, 250.0, 250.0]
    found = pool_rois(maps, (4, 8, 16, 32), [torch.tensor([large, small]), torch.tensor([small, large])], 2)
    assert found[:, 0, 0, 0].tolist() == [20, 0, 1, 21]
    assert pool_rois(maps, (4, 8, 16, 32), [torch.zeros(0, 4), torch.zeros(0, 4)], 2).shape == (0, 1, 2, 2)


@pytest.mark.parametrize(("small", "other"), [(0, "roi_align_separable"), (56, "roi_align")])
def test_rois_of_small_and_large_maps_are_the_loops(monkeypatch, small, other):
    """Maps of 12 x 14 cells and 3 bins: from SMALL = 56 on by products, else by sampling, in chunks of 3 boxes. The second
    image ends after 40 of its 48 rows and 44 of its 56 columns of pixels."""
    module = "dynavit.models.detection.roi_align"
    monkeypatch.setattr(f"{module}.SMALL", small)
    monkeypatch.setattr(f"{module}.CHUNK", 3)
    monkeypatch.setattr(f"{module}.{other}", None)
    maps = torch.stack([some_map(), some_map().flip(2)])
    found = pool_rois([maps], [4], [BOXES, BOXES[:3]], 3, extents=[(48, 56), (40, 44)])
    expected = [loops(maps[0], BOXES, 3, 0.25, 2, True), loops(maps[1, :, :10, :11], BOXES[:3], 3, 0.25, 2, True)]
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-11, atol=1e-11)


def test_masks_are_pasted_pixel_by_pixel():
    chances = torch.rand(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    box, (rows, cols) = torch.tensor([3.3, 2.0, 14.9, 9.5], dtype=torch.float64), (12, 16)
    x1, y1, x2, y2 = box.tolist()
    expected = torch.zeros(rows, cols, dtype=torch.bool)
    for y in range(rows):
        for x in range(cols):
            v, u = (y + 0.5 - y1) / (y2 - y1) * 4 - 0.5, (x + 0.5 - x1) / (x2 - x1) * 4 - 0.5
            value = sum(
                float(chances[i, j]) * max(0, 1 - abs(v - i)) * max(0, 1 - abs(u - j)) for i in range(4) for j in range(4)
            )
            expected[y, x] = value >= 0.5
    assert torch.equal(paste_mask(chances, box, (rows, cols)), expected)
    assert expected.any() and not expected[:, :3].any()
    everything = paste_mask(torch.ones(28, 28), torch.tensor([2.0, 3.0, 12.0, 9.0]), (12, 16))
    assert everything[3:9, 2:12].all() and not everything[:, 13:].any()
