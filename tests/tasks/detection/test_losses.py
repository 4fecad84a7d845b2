"""Losses by hand: sums, divisors, empty images, and gradients for every parameter."""

import math

import pytest
import torch

import dynavit
from dynavit.models.detection.boxes import encode
from dynavit.models.detection.dense import Dense
from dynavit.models.detection.maskrcnn import Looked
from dynavit.models.detection.rules import Rules
from dynavit.tasks.detection.losses import focal_sum
from dynavit.tasks.detection.maskrcnn import Choice, box_losses, mask_loss, mask_targets, maskrcnn_losses, proposal_losses
from dynavit.tasks.detection.retinanet import retinanet_losses
from dynavit.tasks.options import DetectionOptions
from tasks.detection.targets import batch_of, target

OPTIONS = DetectionOptions(rois=32)
RULES = Rules(candidates=100, proposals=50)


def test_focal_loss_of_three_anchors():
    logits = torch.tensor([[0.3, -1.2], [2.0, 0.1], [-0.5, 0.7]], dtype=torch.float64)
    classes = torch.tensor([1, -1, 0])
    expected = 0.0
    for row, label in zip(logits.tolist(), classes.tolist(), strict=True):
        for c, value in enumerate(row):
            p = 1 / (1 + math.exp(-value))
            expected += -0.25 * (1 - p) ** 2 * math.log(p) if c == label else -0.75 * p**2 * math.log(1 - p)
    assert focal_sum(logits, classes).item() == pytest.approx(expected, rel=1e-12)


def test_torchvisions_focal_loss_agrees():
    from dynavit.common.torchvision_shim import ensure_torchvision

    ensure_torchvision()
    from torchvision.ops import sigmoid_focal_loss

    logits = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    classes = torch.arange(20) % 5 - 1
    hot = torch.nn.functional.one_hot(classes + 1, 5)[:, 1:].float()
    torch.testing.assert_close(focal_sum(logits, classes), sigmoid_focal_loss(logits, hot, reduction="sum"))


class Fixed(torch.nn.Module):
    """A RetinaNet of three anchors, whose predictions are given."""

    def __init__(self, logits, deltas, anchors, usable=None):
        super().__init__()
        self.stds = torch.ones(4, dtype=torch.float64)
        usable = torch.ones(logits.shape[:2], dtype=torch.bool) if usable is None else usable
        self.dense = Dense([logits], [deltas], [anchors], [usable], torch.full((len(logits), 2), 64))

    def forward(self, images, sizes):
        return self.dense


ANCHORS = torch.tensor([[0.0, 0.0, 20.0, 20.0], [0.0, 0.0, 20.0, 9.0], [40.0, 40.0, 60.0, 60.0]])  # IoU 1, 0.45, 0


def three(images=1):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 3, 2, generator=generator, dtype=torch.float64).expand(images, 3, 2)
    deltas = torch.randn(1, 3, 4, generator=generator, dtype=torch.float64).expand(images, 3, 4)
    return logits, deltas


def test_retinanet_on_three_anchors():
    logits, deltas = three()
    truth = target([[0.0, 0.0, 20.0, 20.0]], [1])
    found = retinanet_losses(Fixed(logits, deltas, ANCHORS), {"images": None, "sizes": None}, [truth], OPTIONS)
    # anchor 0 learns class 1, anchor 1 is ignored, anchor 2 learns background; one positive divides
    assert found["loss_class"].item() == pytest.approx(focal_sum(logits[0, [0, 2]], torch.tensor([1, -1])).item())
    assert found["loss_box"].item() == pytest.approx(deltas[0, 0].abs().sum().item())  # the box is the anchor: offsets 0
    assert found["loss"].item() == pytest.approx(found["loss_class"].item() + found["loss_box"].item())
    assert found["far"].item() == 0


def test_the_divisor_counts_at_least_one_for_each_image():
    logits, deltas = three(2)
    full, empty = target([[0.0, 0.0, 20.0, 20.0]], [1]), target([], [])
    model, inputs = Fixed(logits, deltas, ANCHORS), {"images": None, "sizes": None}
    both = retinanet_losses(model, inputs, [full, empty], OPTIONS)
    nothing = focal_sum(logits[0], torch.tensor([-1, -1, -1]))
    expected = (focal_sum(logits[0, [0, 2]], torch.tensor([1, -1])) + nothing) / 2
    assert both["loss_class"].item() == pytest.approx(expected.item())
    twice = retinanet_losses(model, inputs, [full, full], OPTIONS)
    once = retinanet_losses(Fixed(*three(), ANCHORS), inputs, [full], OPTIONS)
    assert twice["loss"].item() == pytest.approx(once["loss"].item(), rel=1e-12)


def test_crowds_and_far_things_are_told_and_unusable_anchors_learn_nothing():
    logits, deltas = three()
    small = {**target([[41.0, 41.0, 44.0, 44.0]], [0]), "crowd_boxes": torch.tensor([[0.0, 0.0, 20.0, 20.0]])}
    usable = torch.tensor([[True, False, True]])
    model = Fixed(logits, deltas, ANCHORS, usable)
    found = retinanet_losses(model, {"images": None, "sizes": None}, [small], OPTIONS)
    assert found["far"].item() == 1  # its best anchor overlaps it by 0.02, and learns it all the same
    assert found["loss_class"].item() == pytest.approx(focal_sum(logits[0, [0, 2]], torch.tensor([-1, 0])).item())


def test_proposals_learn_from_what_was_drawn():
    """Fewer anchors than are drawn: all of them take part, and divide."""
    logits = torch.tensor([[[0.3], [1.0], [-0.4]]], dtype=torch.float64)
    _, deltas = three()
    dense = Dense([logits], [deltas], [ANCHORS], [torch.ones(1, 3, dtype=torch.bool)], torch.tensor([[64, 64]]))
    truth = target([[1.0, 0.0, 21.0, 20.0]], [1])
    found = proposal_losses(dense, [truth], torch.ones(4, dtype=torch.float64))
    log = torch.nn.functional.logsigmoid
    # anchor 0 overlaps by 19/21: a thing; anchor 1 by 0.41: neither; anchor 2: nothing
    assert found["loss_proposal_class"].item() == pytest.approx(-(log(logits[0, 0]) + log(-logits[0, 2])).item() / 2)
    goal = torch.tensor([0.05, 0, 0, 0], dtype=torch.float64)
    assert found["loss_proposal_box"].item() == pytest.approx((deltas[0, 0] - goal).abs().sum().item() / 2)


def test_boxes_learn_their_class_and_background_is_last():
    truth = target([[0.0, 0.0, 20.0, 20.0]], [1])
    choice = Choice([truth], 512)
    proposed = torch.tensor([[0.0, 0.0, 18.0, 20.0], [30.0, 30.0, 50.0, 50.0]], dtype=torch.float64)
    boxes, drawn = choice([proposed])
    assert boxes[0].tolist() == [[0, 0, 20, 20], [0, 0, 18, 20], [30, 30, 50, 50]]  # the true box is among them
    assert drawn[0].tolist() == [[0, 0, 20, 20], [0, 0, 18, 20]]
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    deltas = torch.randn(3, 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    stds = torch.tensor([0.1, 0.1, 0.2, 0.2], dtype=torch.float64)
    found = box_losses(Looked(None, logits, deltas, None), choice, stds)
    chances = logits.log_softmax(1)
    expected = -(chances[0, 1] + chances[1, 1] + chances[2, 3]) / 3
    assert found["loss_class"].item() == pytest.approx(expected.item())
    goals = encode(truth["boxes"].double().repeat(2, 1), boxes[0][:2], stds)
    assert found["loss_box"].item() == pytest.approx(((deltas[:2, 1] - goals).abs().sum() / 3).item())


def test_masks_are_cut_at_the_proposal():
    bitmap = torch.zeros(1, 40, 40, dtype=torch.bool)
    bitmap[0, 10:30, 10:30] = True
    half = torch.tensor([[20.0, 10.0, 40.0, 30.0]])  # its left half is inside the thing
    found = mask_targets(bitmap, half, torch.tensor([0]))
    assert found.shape == (1, 28, 28) and found[0, :, :14].all() and not found[0, :, 14:].any()
    own = mask_targets(bitmap, torch.tensor([[10.0, 10.0, 30.0, 30.0]]), torch.tensor([0]))
    assert own.all()
    assert mask_targets(None, half[:0], torch.zeros(0, dtype=torch.int64)).shape == (0, 28, 28)
    with pytest.raises(ValueError, match="with_masks false"):
        mask_targets(None, half, torch.tensor([0]))


def test_the_mask_of_the_true_class_learns():
    truth = target([[0.0, 0.0, 20.0, 20.0]], [1], size=(64, 64))
    choice = Choice([truth], 512)
    choice([torch.zeros(0, 4, dtype=torch.float64)])
    logits = torch.randn(1, 3, 28, 28, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    loss = mask_loss(logits, choice)
    assert loss.item() == pytest.approx(-torch.nn.functional.logsigmoid(logits[0, 1]).mean().item())
    loss.backward()
    assert logits.grad[0, 1].any() and not logits.grad[0, [0, 2]].any()


# ---- whole detectors

THINGS = [
    [target([[5.0, 5.0, 40.0, 30.0], [20.0, 20.0, 60.0, 62.0]], [0, 2]), target([[0.0, 0.0, 30.0, 60.0]], [1])],
    [target([], []), target([], [])],  # nothing on any image
    [target([], []), target([[8.0, 8.0, 50.0, 50.0]], [2])],
]


@pytest.mark.parametrize("things", THINGS, ids=["full", "empty", "half"])
@pytest.mark.parametrize("name", ["test_retinanet", "test_maskrcnn"])
def test_every_parameter_gets_a_finite_gradient(name, things):
    torch.manual_seed(0)
    model = dynavit.create_model(name, "dtn").train()
    batch = batch_of(things, sizes=[(64, 64), (50, 40)])
    losses = losses_of(model, batch)
    losses["loss"].backward()
    assert losses["loss"].item() > 0 and all(value.isfinite() for value in losses.values())
    for parameter, value in model.named_parameters():
        assert value.grad is not None and value.grad.isfinite().all(), parameter


def losses_of(model, batch):
    if model.kind == "maskrcnn":
        return maskrcnn_losses(model, batch.inputs, batch.targets, OPTIONS, RULES)
    return retinanet_losses(model, batch.inputs, batch.targets, OPTIONS)


@pytest.mark.parametrize("name", ["test_retinanet", "test_maskrcnn"])
def test_half_precision_trains(name):
    torch.manual_seed(0)
    model = dynavit.create_model(name, "dtn").train()
    with torch.autocast("cpu", torch.bfloat16):
        losses = losses_of(model, batch_of(THINGS[0]))
    losses["loss"].backward()
    assert losses["loss"].dtype == torch.float32
    for parameter, value in model.named_parameters():
        assert value.grad.isfinite().all(), parameter


@pytest.mark.parametrize("name", ["test_retinanet", "test_maskrcnn"])
def test_the_same_seed_draws_the_same(name):
    torch.manual_seed(0)
    model = dynavit.create_model(name, "dtn").train()
    found = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        found.append(losses_of(model, batch_of(THINGS[0]))["loss"].item())
    assert found[0] == found[1]
    assert (found[1] != found[2]) == (name == "test_maskrcnn")  # RetinaNet draws nothing
