"""The equations of self-distillation against plain sums, in float64."""

import itertools
import math

import pytest
import torch

from dynavit.tasks.self_distillation import (
    centred_targets,
    distillation_loss,
    entropy,
    momentum_at,
    sinkhorn_targets,
    temperature_at,
)

B, K, TAU_S, TAU_T = 3, 5, 0.1, 0.04


def logits(views, seed=0, spread=0.3):
    return spread * torch.randn(views, B, K, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def log_p(student):
    return (student / TAU_S).log_softmax(-1)


def plain_loss(student, targets):
    """The double sum over pairs, sample by sample."""
    pairs = [(i, v) for i, v in itertools.product(range(2), range(len(student))) if i != v]
    total = 0.0
    for i, v in pairs:
        for b in range(B):
            scaled = student[v, b] / TAU_S
            log_softmax = scaled - scaled.exp().sum().log()
            total += -sum(float(targets[i, b, k] * log_softmax[k]) for k in range(K)) / B
    return total / len(pairs), len(pairs)


@pytest.mark.parametrize("local", [0, 3])
def test_the_loss_is_the_double_sum(local):
    student = logits(2 + local)
    targets = centred_targets(logits(2, 1), logits(1, 2)[0, 0], TAU_T)
    expected, pairs = plain_loss(student, targets)
    assert pairs == 2 * (2 + local) - 2
    assert float(distillation_loss(log_p(student), targets)) == pytest.approx(expected, rel=1e-12)


def test_a_view_is_never_compared_with_itself():
    """The first student view is extreme: what it would give with the first target must not be in the loss."""
    student = logits(5)
    student[0] *= 1e3
    targets = centred_targets(logits(2, 1), torch.zeros(K, dtype=torch.float64), TAU_T)
    before = distillation_loss(log_p(student), targets)
    changed = targets.clone()
    changed[1] = 1 / K  # the target of view 2, which only view 1 and the local ones are compared with
    moved = distillation_loss(log_p(student), changed) - before
    own = -(changed[1] - targets[1]) * log_p(student)
    expected = (own.sum(-1).mean(-1)[[0, 2, 3, 4]]).sum() / 8
    torch.testing.assert_close(moved, expected)


def test_the_gradient_is_the_closed_form_and_teachers_get_none():
    student, teacher, centre = logits(5).requires_grad_(), logits(2, 1).requires_grad_(), logits(1, 2)[0, 0].requires_grad_()
    with torch.no_grad():
        targets = centred_targets(teacher, centre, TAU_T)
    distillation_loss(log_p(student), targets).backward()
    p = (student / TAU_S).softmax(-1)
    for v in range(5):
        expected = sum(p[v] - targets[i] for i in range(2) if i != v) / (TAU_S * B * 8)
        torch.testing.assert_close(student.grad[v], expected.detach())
    assert teacher.grad is None and centre.grad is None


def test_targets_are_a_softmax_around_the_centre():
    teacher, centre = logits(2, 1), logits(1, 2)[0, 0]
    targets = centred_targets(teacher, centre, TAU_T)
    for i, b in itertools.product(range(2), range(B)):
        weights = [math.exp(float(teacher[i, b, k] - centre[k]) / TAU_T) for k in range(K)]
        assert targets[i, b].tolist() == pytest.approx([w / sum(weights) for w in weights], rel=1e-10)


def test_sinkhorn_is_the_plain_iteration_and_shares_prototypes_out():
    teacher = logits(2, 1, spread=0.05)
    found = sinkhorn_targets(teacher, B, TAU_T)
    q = (teacher.flatten(0, 1) / TAU_T).exp().T  # (k, members)
    q = q / q.sum()
    for _ in range(3):
        q = q / q.sum(1, keepdim=True) / K
        q = q / q.sum(0, keepdim=True) / q.shape[1]
    torch.testing.assert_close(found.flatten(0, 1), (q * q.shape[1]).T)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, B, dtype=torch.float64))
    shares = found.flatten(0, 1).mean(0)
    assert (
        float((shares - 1 / K).abs().max())
        < 0.02
        < float((centred_targets(teacher, 0, TAU_T).mean((0, 1)) - 1 / K).abs().max())
    )


def test_samples_that_do_not_count_change_nothing_in_sinkhorn():
    teacher = logits(2, 1)
    together = sinkhorn_targets(torch.cat([teacher, logits(2, 5)], 1), B, TAU_T)
    torch.testing.assert_close(together[:, :B], sinkhorn_targets(teacher, B, TAU_T))
    torch.testing.assert_close(together[:, B:], (logits(2, 5) / TAU_T).softmax(-1))


def test_entropy():
    p = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    assert entropy(p).tolist() == pytest.approx([1.5 * math.log(2), 0.0])


def test_schedules():
    for step in range(50):
        assert momentum_at(step, 50, 0.99) == pytest.approx(1 - 0.01 * (1 + math.cos(math.pi * step / 50)) / 2)
    assert momentum_at(0, 50, 0.99) == pytest.approx(0.99) and 0.99999 < momentum_at(49, 50, 0.99) < 1
    assert [temperature_at(step, 30, 0.04, 0.07) for step in (0, 10, 30, 99)] == pytest.approx([0.04, 0.05, 0.07, 0.07])
    assert temperature_at(0, 0, 0.01, 0.04) == 0.04
