"""The task: teacher, centre, schedules, freezing. What depends on a loop is in test_dino_training.py."""

import copy
import itertools

import pytest
import torch
from torch import nn

from dynavit.common.data import LoaderOptions
from dynavit.data.config import AugmentConfig, DataConfig
from dynavit.data.digits import open_digits
from dynavit.engine.config import OptimConfig
from dynavit.engine.optimiser import make_optimiser
from dynavit.models import create_model
from dynavit.models.projection import MultiCropStudent, ProjectionHead, Prototypes, features_of_views
from dynavit.norms import list_norms
from dynavit.tasks.dino import Dino, views_of
from dynavit.tasks.options import DinoOptions
from tasks.dino_tiny import LOCAL, SIDE, K, batch, optimiser_of, step, tiny_model, tiny_task, views

CPU = torch.device("cpu")

# ---- The head


def test_prototypes_are_cosines_times_lengths():
    torch.manual_seed(0)
    layer = Prototypes(4, 6).double().requires_grad_(False)
    layer.g.copy_(torch.rand(6, 1))
    z = torch.randn(3, 4, dtype=torch.float64)
    found = layer(z)
    for b, k in itertools.product(range(3), range(6)):
        v = layer.v[k]
        assert float(found[b, k]) == pytest.approx(float(layer.g[k, 0] * (v @ z[b]) / v.norm()), rel=1e-10)
    assert not Prototypes(4, 6).g.requires_grad and Prototypes(4, 6, trained_length=True).g.requires_grad


def test_the_head_ends_on_the_unit_sphere():
    torch.manual_seed(0)
    head = ProjectionHead(5, 7, 4, 6).double()
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    first, second, third = (layer for layer in head.mlp if isinstance(layer, nn.Linear))
    gelu = nn.functional.gelu
    y = third(gelu(second(gelu(first(x)))))
    z = y / y.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(head(x), head.prototypes(z))
    assert all(float(layer.bias.detach().abs().max()) == 0 for layer in (first, second, third))
    assert copy.deepcopy(head)(x).equal(head(x))


def test_sizes_of_the_papers_head():
    """For 432 channels: 5,607,680 + 16,777,216 (v) + 65,536 (g)."""
    with torch.device("meta"):
        head = ProjectionHead(432, 2048, 256, 65536)
    assert sum(p.numel() for p in head.mlp.parameters()) == 5_607_680
    assert [head.prototypes.v.numel(), head.prototypes.g.numel()] == [16_777_216, 65_536]


# ---- Views of several sizes


@pytest.mark.parametrize("norm", ["ln", "dtn"])
def test_views_of_several_sizes_are_separate_calls_in_their_order(norm):
    """6x6, 14x14 and 6x4 tokens, mixed up, through one model at once; groups go by both sides."""
    torch.manual_seed(0)
    model = tiny_model(norm, img_size=28).double().eval()
    sizes = [(28, 28), (12, 8), (12, 12), (28, 28), (12, 8), (8, 12)]
    images = [torch.randn(3, 1, *size, dtype=torch.float64) for size in sizes]
    found = features_of_views(model, images)
    for view, features in zip(images, found, strict=True):
        torch.testing.assert_close(features, model(view), rtol=1e-10, atol=1e-12)
    student = MultiCropStudent(model, ProjectionHead(18, 24, 8, K).double())
    assert student(images).shape == (6, 3, K)


def test_the_backbone_runs_once_for_each_size():
    calls = []
    model = tiny_model().eval()
    model.register_forward_pre_hook(lambda module, inputs: calls.append(tuple(inputs[0].shape)))
    features_of_views(model, views(3, local=4))
    assert calls == [(6, 1, SIDE, SIDE), (12, 1, LOCAL, LOCAL)]


def test_a_late_class_token_is_there_only_in_the_last_blocks():
    model = tiny_model().eval()
    found = model.forward_intermediates(
        torch.randn(2, 1, LOCAL, LOCAL), return_prefix_tokens=True, output_fmt="NLC", intermediates_only=True
    )
    assert [(patches.shape[1], prefix.shape[1]) for patches, prefix in found] == [(4, 0), (4, 0), (4, 1)]


# ---- Teacher and student


def test_the_teacher_starts_as_the_student_and_follows_it():
    task = tiny_task(momentum=0.9, train_length=True, freeze_epochs=0).double()
    pairs = lambda: [  # noqa: E731
        *zip(task.model.parameters(), task.student.backbone.parameters(), strict=True),
        *zip(task.teacher_head.parameters(), task.student.head.parameters(), strict=True),
    ]
    assert all(torch.equal(teacher, student) for teacher, student in pairs())
    optimiser = optimiser_of(task)
    for number in range(3):
        before = [teacher.clone() for teacher, _ in pairs()]
        step(task, optimiser, [batch(6, number, dtype=torch.float64)], number)
        m = 1 - 0.1 * (1 + torch.cos(torch.tensor(torch.pi * number / 10, dtype=torch.float64))) / 2
        for old, (teacher, student) in zip(before, pairs(), strict=True):
            torch.testing.assert_close(teacher, m * old + (1 - m) * student, rtol=1e-12, atol=1e-12)
    moved = [not torch.equal(a, b) for a, b in pairs()]
    assert all(moved)  # v and g are among them


def test_the_teacher_has_no_gradient_and_no_optimiser():
    task = tiny_task()
    seen = []
    task.model.register_forward_pre_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    task(batch(4))["loss"].backward()
    assert seen == [False]
    own = {id(p) for part in (task.model, task.teacher_head) for p in part.parameters()}
    assert not any(p.requires_grad or p.grad is not None for p in task.parameters() if id(p) in own)
    assert all(p.grad is not None for p in task.student.parameters() if p.requires_grad)
    grouped = [p for group in make_optimiser(task, OptimConfig(), CPU).param_groups for p in group["params"]]
    assert {id(p) for p in grouped} == {id(p) for p in task.student.parameters() if p.requires_grad}
    assert not own & {id(p) for p in grouped}


def test_the_teacher_drops_nothing_and_its_norms_train():
    task = tiny_task("bn", model={"drop_path_rate": 0.5}).train()
    kinds = {type(module).__name__: module.training for module in task.model.modules()}
    assert kinds["DropPath"] is False and kinds["BatchNorm"] is True
    assert all(module.training for module in task.student.modules())
    task.eval()
    assert not any(module.training for module in task.modules())


def test_the_loss_of_a_task_is_that_of_the_equations():
    task = tiny_task(targets="centre").double()
    task.centre.normal_(0, 0.05)
    one = batch(5, dtype=torch.float64)
    found = task(one)
    with torch.no_grad():
        teacher = [task.teacher_head(task.model(view)) for view in one.inputs[:2]]
        p = [((t - task.centre) / 0.04).softmax(-1) for t in teacher]
        log_p = [(task.student.head(task.student.backbone(view)) / 0.1).log_softmax(-1) for view in one.inputs]
        pairs = [-(p[i] * log_p[v]).sum(-1).mean() for i in range(2) for v in range(4) if v != i]
        own = torch.stack([-(x * x.log()).sum(-1).mean() for x in p]).mean()
    torch.testing.assert_close(found["loss"].detach(), torch.stack(pairs).mean())
    torch.testing.assert_close(found["code_entropy"], own)
    torch.testing.assert_close(found["kl"], torch.stack(pairs).mean() - own)
    assert len(pairs) == 6


# ---- The centre


def test_the_centre_follows_the_logits_of_earlier_steps():
    task, expected = tiny_task(freeze_epochs=0).double(), torch.zeros(K, dtype=torch.float64)
    optimiser = optimiser_of(task)
    for number in range(4):
        one, used = batch(6, number, dtype=torch.float64), []
        usual = task.targets
        task.targets = lambda logits, count, usual=usual, used=used: used.append(task.centre.clone()) or usual(logits, count)
        with torch.no_grad():
            logits = torch.stack([task.teacher_head(task.model(view)) for view in one.inputs[:2]])
        step(task, optimiser, [one], number)
        task.targets = usual
        torch.testing.assert_close(used[0], expected)  # that of the steps before
        expected = 0.9 * expected + 0.1 * logits.mean((0, 1))
        torch.testing.assert_close(task.centre, expected)


def test_micro_batches_give_the_same_centre_and_window():
    whole, parts = tiny_task().double(), tiny_task().double()
    one = batch(6, dtype=torch.float64)
    halves = [
        type(one)([view[cut] for view in one.inputs], one.targets[cut], one.index[cut], len(one.index[cut]), 6)
        for cut in (slice(0, 2), slice(2, 6))
    ]
    for task, given in ((whole, [one]), (parts, halves)):
        task.window_steps = 3
        step(task, optimiser_of(task), given)
    torch.testing.assert_close(parts.centre, whole.centre, rtol=1e-12, atol=1e-14)
    for a, b in zip(parts.watch.window, whole.watch.window, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    for a, b in zip(parts.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def test_a_borrowed_sample_counts_for_nothing():
    task = tiny_task().double()
    one, borrowed = batch(4, step_count=4, dtype=torch.float64), batch(1, 9, count=0, step_count=4, dtype=torch.float64)
    alone = copy.deepcopy(task)
    step(task, optimiser_of(task), [one, borrowed])
    step(alone, optimiser_of(alone), [one])
    torch.testing.assert_close(task.centre, alone.centre)
    assert float(task.watch.window_count) in (0.0, 8.0) and torch.equal(task.watch.last.isnan(), alone.watch.last.isnan())


def test_a_step_that_is_not_made_leaves_no_trace():
    task = tiny_task()
    task(batch(4))
    task.forget_statistics()
    task.commit_statistics()
    assert not task.centre.any() and not task.watch.window_count


# ---- Schedules, decay, freezing


def test_schedules_follow_the_steps():
    task = tiny_task(
        momentum=0.99, warmup_temperature=0.02, teacher_temperature=0.06, warmup_temperature_epochs=2, freeze_epochs=1
    )
    task.steps_per_epoch = 10
    task.set_progress(0, 100)
    assert (task.temperature, task.momentum, task.frozen) == (0.02, pytest.approx(0.99), True)
    task.set_progress(10, 100)
    assert (task.temperature, task.frozen) == (pytest.approx(0.04), False)
    task.set_progress(20, 100)
    assert task.temperature == 0.06
    task.set_progress(99, 100)
    assert task.momentum == pytest.approx(1, abs=1e-5)


def test_what_is_decayed():
    """Weights of two axes; not the positions of DTN, nor those of tokens, nor the class token, nor lengths of prototypes."""
    task = tiny_task("dtn", train_length=True)
    groups = make_optimiser(task, OptimConfig(weight_decay=0.04), CPU).param_groups
    names = {id(p): name for name, p in task.named_parameters()}
    spared = {names[id(p)] for group in groups if not group["weight_decay"] for p in group["params"]}
    decayed = {names[id(p)] for group in groups if group["weight_decay"] for p in group["params"]}
    student = "student.backbone."
    assert {student + "blocks.0.norm1.position", student + "pos_embed", student + "cls_token"} <= spared
    assert "student.head.prototypes.g" in spared and "student.head.prototypes.v" in decayed
    assert {student + "blocks.0.attn.qkv.weight", "student.head.mlp.0.weight"} <= decayed
    assert not any(name.endswith("bias") for name in decayed)


def test_prototypes_are_frozen_at_first_and_not_decayed():
    task = tiny_task(freeze_epochs=1, train_length=True)
    task.steps_per_epoch = 2
    optimiser = optimiser_of(task, weight_decay=0.5)
    start = copy.deepcopy(task.student.head)
    for number in range(3):
        frozen = number < 2
        step(task, optimiser, [batch(4, number)], number)
        same = [
            torch.equal(a, b)
            for a, b in zip(task.student.head.prototypes.parameters(), start.prototypes.parameters(), strict=True)
        ]
        assert same == [frozen, frozen]
        assert not torch.equal(task.student.head.mlp[0].weight, start.mlp[0].weight)


# ---- Every norm


@pytest.mark.parametrize("norm", list_norms())
def test_every_norm_takes_two_steps(norm):
    task = tiny_task(norm).train()
    for module in task.modules():
        if hasattr(module, "defer_statistics"):
            module.defer_statistics(True)
    commits = [
        module.commit_statistics for module in task.modules() if module is not task and hasattr(module, "commit_statistics")
    ]
    optimiser = optimiser_of(task, 1e-3)
    for number in range(2):
        loss = step(task, optimiser, [batch(6, number)], number)["loss"]
        for commit in commits:
            commit()
        assert torch.isfinite(loss)
    for name, tensor in task.state_dict().items():
        assert torch.isfinite(tensor).all() or name == "watch.last", name
    counters = {n: b for n, b in task.model.named_buffers() if not b.is_floating_point() and "skipped" not in n}
    student = dict(task.student.backbone.named_buffers())
    for name, counter in counters.items():  # each counts its own steps: never averaged
        assert torch.equal(counter, student[name]), name


# ---- Options


def test_views_that_make_no_sense_are_named():
    data = open_digits(None, DataConfig(image_size=16))
    with pytest.raises(ValueError, match=r"task.local_scale=\[0.5, 0.2\]: two parts of the area"):
        views_of(data, DinoOptions(local_scale=(0.5, 0.2)))
    with pytest.raises(ValueError, match="does not take views of 7x7 pixels .* multiple of the patches"):
        Dino.build(tiny_model(img_size=16, patch_size=4), data, DinoOptions(local_size=7, prototypes=8))
    assert views_of(data, DinoOptions(local_crops=0))[0].scale == (0.14, 1.0)
    assert [view.size for view in views_of(data, DinoOptions(local_crops=1))] == [(16, 16), (16, 16), (8, 8)]


def test_models_and_data_that_do_not_fit_are_named():
    class Words:
        name = "words"

    with pytest.raises(ValueError, match="makes views of images, and words is a Words"):
        Dino.check_data(Words())
    with pytest.raises(ValueError, match="has several exits"):
        Dino.build(create_model("dvt_vit_digits"), None, DinoOptions(prototypes=8))


def test_too_few_images_for_the_neighbours():
    data, task = open_digits(None, DataConfig(limit=15)), tiny_task(neighbours=20)
    how = LoaderOptions(train=False, batch_size=8, augment=AugmentConfig(), config=DataConfig())
    with pytest.raises(ValueError, match="task.neighbours=20 cannot vote among 15 training images"):
        task.loader(data, "val", how)
