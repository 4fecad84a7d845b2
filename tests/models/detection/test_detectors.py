"""RetinaNet and Mask R-CNN: what goes in, what comes out, and that an image does not notice its neighbours."""

import math

import pytest
import torch

import dynavit
from dynavit.models import registry
from dynavit.models.detection.anchors import THIRDS
from dynavit.models.detection.boxes import decode, iou
from dynavit.models.detection.dense import detections, lay_anchors
from dynavit.models.detection.rules import Rules

DETECTORS = ["test_retinanet", "test_maskrcnn"]
ALL = Rules(score=0.0, candidates=50, proposals=20, most=10)  # an untrained detector is sure of nothing


def build(name, norm="dtn", **options):
    torch.manual_seed(0)
    model = dynavit.create_model(name, norm, **options).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.03 * torch.randn(parameter.shape, dtype=parameter.dtype))
    return model


def images(*sizes, side=(96, 128)):
    generator = torch.Generator().manual_seed(1)
    batch = torch.zeros(len(sizes), 3, *side, dtype=torch.float64)
    for image, (height, width) in zip(batch, sizes, strict=True):
        image[:, :height, :width] = torch.randn(3, height, width, generator=generator, dtype=torch.float64)
    return batch, torch.tensor(sizes)


@pytest.mark.parametrize("name", DETECTORS)
def test_detectors_are_trained_by_their_task_and_described(name):
    assert registry.task_of(name) == "detection" and registry.describe_model(name)
    assert dynavit.create_model(name, num_classes=7).num_classes == 7
    with pytest.raises(ValueError, match="unknown option of model"):
        dynavit.create_model(name, widht=3)
    with pytest.raises(ValueError, match="at least one class"):
        dynavit.create_model(name, num_classes=0)


def test_predictions_stand_where_their_anchors_are():
    model = build("test_retinanet")
    dense = model(*images((96, 128), (80, 100)))
    cells = [12 * 16, 6 * 8, 3 * 4, 2 * 2, 1 * 1]
    assert [len(level) for level in dense.anchors] == [9 * n for n in cells]
    assert [tuple(level.shape) for level in dense.logits] == [(2, 9 * n, 3) for n in cells]
    assert [tuple(level.shape) for level in dense.deltas] == [(2, 9 * n, 4) for n in cells]
    maps, _ = model.features(*images((96, 128), (80, 100)))
    plain = model.classify(maps[0])  # (b, 9 * classes, rows, cols): anchors of a cell, and classes of an anchor
    assert torch.equal(dense.logits[0][1, (5 * 16 + 3) * 9 + 4, 2], plain[1, 4 * 3 + 2, 5, 3])


def test_the_start_is_rare_and_random():
    model = dynavit.create_model("test_retinanet")
    assert torch.allclose(model.classify.last.bias.sigmoid(), torch.tensor(0.01))
    assert model.classify.hidden[0].weight.std().item() == pytest.approx(0.01, rel=0.1)
    assert model.classify.last.bias[0].item() == pytest.approx(-math.log(99))


def test_anchors_of_cells_that_only_a_neighbour_makes_are_not_used():
    maps = [torch.zeros(2, 1, 4, 4), torch.zeros(2, 1, 2, 2)]
    _, usable = lay_anchors(maps, (32, 64), 4.0, THIRDS, torch.tensor([[128, 128], [33, 65]]))
    assert usable[0].shape == (2, 16 * 9) and usable[0][0].all()
    assert usable[0][1].unflatten(0, (4, 4, 9)).all(-1).int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 0], [0] * 4, [0] * 4]
    assert usable[1][1].unflatten(0, (2, 2, 9)).all(-1).int().tolist() == [[1, 1], [0, 0]]
    _, (fine,) = lay_anchors([torch.zeros(1, 1, 16, 16)], (8,), 4.0, THIRDS, torch.tensor([[33, 65]]))
    assert int(fine.sum()) == 9 * 8 * 12  # padded alone it has 64 x 96 pixels, and these cells count


@pytest.mark.parametrize("name", DETECTORS)
def test_an_image_has_the_same_detections_in_every_batch(name):
    model = build(name, padding="all")
    batch, sizes = images((64, 64), (96, 128), (50, 90))
    together, every = model.detect(batch, sizes, ALL), model.dense(batch, sizes)
    for at in (0, 2):
        height, width = ((-(-n // 32)) * 32 for n in sizes[at].tolist())
        (alone,) = model.detect(batch[at : at + 1, :, :height, :width], sizes[at : at + 1], ALL)
        dense = model.dense(batch[at : at + 1, :, :height, :width], sizes[at : at + 1])
        for ours, usable, its in zip(every.logits, every.usable, dense.logits, strict=True):
            torch.testing.assert_close(ours[at][usable[at]], its[0], rtol=1e-9, atol=1e-9)
        assert len(alone["boxes"]) == 10
        for part in ("boxes", "scores", "labels"):
            torch.testing.assert_close(together[at][part], alone[part], rtol=1e-6, atol=1e-6)
    neighbours = build(name, padding="none").detect(batch, sizes, ALL)[0]["scores"]
    (alone,) = build(name, padding="none").detect(batch[:1, :, :64, :64], sizes[:1], ALL)
    assert (neighbours - alone["scores"]).abs().max() > 1e-6


@pytest.mark.parametrize("name", DETECTORS)
def test_boxes_are_inside_the_image_and_not_its_padding(name):
    model = build(name)
    batch, sizes = images((64, 70), (96, 128))
    found = model.detect(batch, sizes, ALL)[0]
    assert len(found["boxes"]) == 10
    assert found["boxes"].min() >= 0 and found["boxes"][:, 2].max() <= 70 and found["boxes"][:, 3].max() <= 64
    assert (found["scores"].diff() <= 0).all()
    assert model.detect(batch, sizes, Rules(score=1.0))[0]["boxes"].shape == (0, 4)


def test_detections_by_hand():
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 0.0, 11.0, 10.0], [50.0, 50.0, 60.0, 60.0], [3.0, 3.0, 3.0, 9.0]])
    scores = torch.tensor([[0.9, 0.04], [0.8, 0.7], [0.3, 0.2], [0.99, 0.0]])
    found = detections(boxes, scores, Rules())
    # box 3 has no width; of boxes 0 and 1 the better of each class stays; 0.04 is not above 0.05
    assert list(zip(found["labels"].tolist(), found["boxes"][:, 0].tolist(), strict=True)) == [(0, 0), (1, 1), (0, 50), (1, 50)]
    assert len(detections(boxes, scores, Rules(most=2))["boxes"]) == 2
    apart = torch.stack([boxes, boxes + 100], 1)  # of each class its own
    assert detections(apart, scores, Rules())["boxes"][1, 0] == 101


def test_only_the_best_anchors_of_a_level_are_candidates():
    model = build("test_retinanet")
    batch, sizes = images((96, 128))
    dense = model(batch, sizes)
    (found,) = model.detections(dense, Rules(score=0.0, overlap=1.0, candidates=1, most=1000))
    assert len(found["boxes"]) <= 5 * 3
    best = dense.logits[0][0].amax(1).argmax()
    box = decode(dense.deltas[0][0][best], dense.anchors[0][best], model.stds).clamp(min=0)
    box = torch.minimum(box, torch.tensor([128.0, 96.0, 128.0, 96.0], dtype=torch.float64))
    assert iou(box[None], found["boxes"]).max() > 0.999


def test_mask_rcnn_looks_at_what_it_is_given():
    model = build("test_maskrcnn").train()
    batch, sizes = images((64, 64), (96, 128))
    given = [
        torch.tensor([[0.0, 0.0, 30.0, 40.0]]).double(),
        torch.tensor([[5.0, 5.0, 90.0, 80.0], [0.0, 0.0, 9.0, 9.0]]).double(),
    ]
    seen = []

    def sample(proposed):
        seen.extend(proposed)
        return given, [given[0], given[1][:0]]

    looked = model(batch, sizes, ALL, sample)
    assert [len(own) for own in seen] == [20, 20] and not seen[0].requires_grad
    assert looked.logits.shape == (3, 4) and looked.deltas.shape == (3, 3, 4) and looked.masks.shape == (1, 3, 28, 28)
    assert [len(level) for level in looked.dense.anchors] == [3 * n for n in (24 * 32, 12 * 16, 6 * 8, 3 * 4, 2 * 2)]


def test_masks_are_those_of_the_labels():
    found = build("test_maskrcnn").detect(*images((96, 128)), ALL)[0]
    assert found["chances"].shape == (10, 28, 28) and 0 < found["chances"].min() < found["chances"].max() < 1
    assert build("test_maskrcnn", with_masks=False).detect(*images((96, 128)), ALL)[0]["chances"] is None


@pytest.mark.parametrize("name", DETECTORS)
def test_an_image_without_sizes_fills_its_batch(name):
    model = build(name)
    batch, sizes = images((96, 128), (96, 128))
    for a, b in zip(model.detect(batch, None, ALL), model.detect(batch, sizes, ALL), strict=True):
        assert torch.equal(a["boxes"], b["boxes"])


@pytest.mark.parametrize("name", DETECTORS)
def test_positions_and_norms_are_not_decayed(name):
    kept = dynavit.create_model(name, "dtn").no_weight_decay()
    assert any(one.endswith("pos_embed1") for one in kept) and any(one.endswith("position") for one in kept)
    assert not any("fpn" in one or "proj.weight" in one for one in kept)
