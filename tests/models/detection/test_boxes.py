"""Boxes against plain loops: overlap, the coder, clipping, suppression, anchors."""

import math
import random

import pytest
import torch

from dynavit.common.torchvision_shim import ensure_torchvision
from dynavit.models.detection.anchors import THIRDS, base_anchors, grid_anchors
from dynavit.models.detection.boxes import LARGEST_LOG_RATIO, clip, decode, encode, iou, large_enough
from dynavit.models.detection.nms import nms


def some_boxes(n, seed=0, side=100.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(n, 2, generator=generator, dtype=dtype) * side
    return torch.cat([corner, corner + 1 + torch.rand(n, 2, generator=generator, dtype=dtype) * side / 2], 1)


def overlap(a, b):
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - width * height
    return width * height / union if union else 0.0


def test_iou_is_the_share_of_the_union():
    a, b = some_boxes(7), some_boxes(5, seed=1)
    expected = [[overlap(one, other) for other in b.tolist()] for one in a.tolist()]
    torch.testing.assert_close(iou(a, b), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    assert iou(a[:0], b).shape == (0, 5)


def test_iou_is_never_half_precision_and_empty_boxes_overlap_nothing():
    point = torch.tensor([[3.0, 3.0, 3.0, 3.0]])
    assert iou(point, point).item() == 0
    assert iou(point.bfloat16(), point.bfloat16()).dtype == torch.float32


def test_decoding_undoes_encoding():
    boxes, anchors = some_boxes(50), some_boxes(50, seed=1)
    for stds in (torch.ones(4).double(), torch.tensor([0.1, 0.1, 0.2, 0.2]).double()):
        torch.testing.assert_close(decode(encode(boxes, anchors, stds), anchors, stds), boxes, rtol=1e-10, atol=1e-10)


def test_offsets_by_hand():
    anchor, box = torch.tensor([[0.0, 0.0, 10.0, 20.0]]), torch.tensor([[5.0, 0.0, 25.0, 20.0]])
    assert encode(box, anchor, torch.ones(4))[0].tolist() == pytest.approx([1.0, 0.0, math.log(2), 0.0])
    scaled = encode(box, anchor, torch.tensor([0.1, 0.1, 0.2, 0.2]))[0].tolist()
    assert scaled == pytest.approx([10.0, 0.0, 5 * math.log(2), 0.0])


def test_sides_are_clamped_both_ways():
    anchor = torch.tensor([[0.0, 0.0, 16.0, 16.0]])
    far = decode(torch.tensor([[0.0, 0.0, 99.0, -99.0]]), anchor, torch.ones(4))[0]
    assert float(far[2] - far[0]) == pytest.approx(1000) and float(far[3] - far[1]) == pytest.approx(16 * 16 / 1000)
    assert pytest.approx(math.log(62.5)) == LARGEST_LOG_RATIO


def test_torchvisions_coder_agrees():
    ensure_torchvision()
    from torchvision.models.detection._utils import BoxCoder

    boxes, anchors = some_boxes(20, dtype=torch.float32), some_boxes(20, seed=1, dtype=torch.float32)
    theirs = BoxCoder((10.0, 10.0, 5.0, 5.0))
    stds = torch.tensor([0.1, 0.1, 0.2, 0.2])
    deltas = encode(boxes, anchors, stds)
    torch.testing.assert_close(deltas, theirs.encode_single(boxes, anchors), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(decode(deltas, anchors, stds), theirs.decode_single(deltas, anchors), rtol=1e-4, atol=1e-3)


def test_clipping_keeps_x_with_the_width():
    boxes = torch.tensor([[-5.0, -6.0, 300.0, 200.0], [10.0, 20.0, 30.0, 40.0]])
    assert clip(boxes, (100, 200)).tolist() == [[0, 0, 200, 100], [10, 20, 30, 40]]
    assert large_enough(torch.tensor([[0.0, 0.0, 1e-4, 5.0], [0.0, 0.0, 1.0, 1.0]])).tolist() == [False, True]


# ---- suppression


def greedy(boxes, scores, groups, threshold):
    order = sorted(range(len(scores)), key=lambda i: -scores[i])  # stable
    kept = []
    for i in order:
        if all(groups[i] != groups[j] or not overlap(boxes[i], boxes[j]) > threshold for j in kept):
            kept.append(i)
    return kept


def suppressed(boxes, scores, groups, threshold=0.5, **options):
    return nms(boxes, scores, groups, threshold, **options).tolist()


@pytest.mark.parametrize("seed", range(12))
def test_suppression_is_greedy(seed):
    generator = torch.Generator().manual_seed(seed)
    boxes = some_boxes(60, seed)
    boxes[:, 2:] -= 0.8 * boxes[:, :2]  # crowded into a corner
    boxes[:, :2] *= 0.2
    scores = torch.randint(12, (60,), generator=generator).double()  # with ties
    groups = torch.randint(3, (60,), generator=generator)
    threshold = (0.2, 0.5, 0.7)[seed % 3]
    expected = greedy(boxes.tolist(), scores.tolist(), groups.tolist(), threshold)
    assert suppressed(boxes, scores, groups, threshold) == expected
    assert 0 < len(expected) < 60
    for block in (1, 7, 32):
        assert suppressed(boxes, scores, groups, threshold, block=block) == expected


def test_a_chain_keeps_every_second_box():
    """Each box overlaps the next alone, so the fixed point needs as many rounds as there are boxes."""
    start = torch.arange(40).double() * 4
    boxes = torch.stack([start, start * 0, start + 10, start * 0 + 10], 1)  # overlap of neighbours 6/14, of others 2/18
    scores, same = torch.arange(40, 0, -1).double(), torch.zeros(40)
    assert suppressed(boxes, scores, same, 0.3) == list(range(0, 40, 2))
    assert suppressed(boxes, scores, torch.arange(40), 0.3) == list(range(40))  # groups do not see each other


def test_special_boxes():
    box, none = torch.tensor([[0.0, 0.0, 10.0, 10.0]]), torch.zeros(0, 4)
    assert suppressed(none, torch.zeros(0), torch.zeros(0)) == []
    assert suppressed(box, torch.ones(1), torch.zeros(1)) == [0]
    assert suppressed(box.repeat(3, 1), torch.tensor([1.0, 3.0, 2.0]), torch.zeros(3)) == [1]  # identical
    nested = torch.tensor([[0.0, 0.0, 10.0, 10.0], [2.0, 2.0, 8.0, 8.0]])
    assert suppressed(nested, torch.tensor([1.0, 2.0]), torch.zeros(2), 0.36) == [1, 0]  # 0.36 is not more than 0.36
    assert suppressed(nested, torch.tensor([1.0, 2.0]), torch.zeros(2), 0.35) == [1]
    point = torch.zeros(2, 4)
    assert suppressed(point, torch.tensor([1.0, 2.0]), torch.zeros(2)) == [1, 0]  # without area nothing overlaps


def test_the_order_of_boxes_does_not_matter():
    boxes, scores = some_boxes(40), torch.rand(40, generator=torch.Generator().manual_seed(3))
    groups = torch.arange(40) % 2
    shuffle = list(range(40))
    random.Random(0).shuffle(shuffle)
    again = nms(boxes[shuffle], scores[shuffle], groups[shuffle], 0.3)
    assert [shuffle[i] for i in again.tolist()] == suppressed(boxes, scores, groups, 0.3)


# ---- anchors


def test_the_first_anchors_of_a_cell_by_hand():
    base = base_anchors(32, THIRDS)
    assert base.shape == (9, 4)
    wide = 32 * math.sqrt(2) / 2  # half of the width, where height / width is 1/2
    assert base[0].tolist() == pytest.approx([-wide, -wide / 2, wide, wide / 2])
    assert base[3].tolist() == pytest.approx([-16, -16, 16, 16])
    assert float(base[4, 2]) == pytest.approx(16 * 2 ** (1 / 3))
    cells = grid_anchors(base, (2, 3), 8)
    assert cells.shape == (54, 4)
    assert cells[9 + 3].tolist() == pytest.approx([8 - 16, -16, 8 + 16, 16])  # cell (0, 1): one stride to the right
    assert cells[3 * 9 + 3].tolist() == pytest.approx([-16, 8 - 16, 16, 8 + 16])  # cell (1, 0)


def test_an_image_of_800x1344_has_201600_anchors():
    grids = [(100, 168), (50, 84), (25, 42), (13, 21), (7, 11)]
    strides = (8, 16, 32, 64, 128)
    assert sum(len(grid_anchors(base_anchors(4 * s, THIRDS), g, s)) for g, s in zip(grids, strides, strict=True)) == 201_600


def test_torchvisions_anchors_agree_up_to_its_rounding():
    ensure_torchvision()
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    theirs = AnchorGenerator(((32, 40, 50),), ((0.5, 1.0, 2.0),)).generate_anchors((32, 40, 50), (0.5, 1.0, 2.0))
    torch.testing.assert_close(base_anchors(32, (1.0, 1.25, 1.5625)), theirs, rtol=0, atol=0.51)
