"""The detector: it fires on both ways to collapse, names them, and is silent in a healthy training and before it is armed."""

import math

import pytest
import torch

from dynavit.tasks.collapse import CollapseWatch, Sums
from tasks.dino_tiny import K, batch, optimiser_of, step, tiny_task

GOOD = torch.eye(K)
UNIFORM = torch.full((K, K), 1 / K)
ONE = torch.eye(K)[[0] * K]
FEATURES = torch.eye(K)[:, :18]


def seen(windows, start=0, total=100, features=FEATURES):
    """(step, sentence) of every window that fires; one window a step."""
    watch, found = CollapseWatch(18, K), []
    for number, codes in enumerate(windows, start):
        watch.add(Sums.of(codes, features))
        if (sentence := watch.close(number, total)) is not None:
            found.append((number + 1, sentence))
    return found, watch


def test_it_fires_after_three_bad_windows_in_a_row_and_once():
    found, watch = seen([GOOD, UNIFORM, UNIFORM, GOOD, UNIFORM, UNIFORM, UNIFORM, UNIFORM])
    assert [at for at, _ in found] == [7] and watch.collapsed_at == 7
    assert "collapse (uniform) seen at step 7: every image gets the same even code" in found[0][1]
    assert "--task.teacher_temperature 0.02" in found[0][1] and "--task.prototypes" in found[0][1]
    found, _ = seen([GOOD, ONE, ONE, ONE])
    assert "collapse (one-prototype)" in found[0][1]


def test_it_is_armed_by_information_or_by_a_fifth_of_the_training():
    assert seen([UNIFORM] * 19)[0] == []
    assert [at for at, _ in seen([UNIFORM] * 22)[0]] == [22]  # windows 20, 21, 22
    assert [at for at, _ in seen([GOOD] + [UNIFORM] * 3)[0]] == [4]


def test_features_along_one_direction_are_a_collapse_too():
    found, _ = seen([GOOD] * 4, features=torch.ones(K, 18))
    assert [at for at, _ in found] == [3] and "collapse (dimensional)" in found[0][1] and "rank of 1.0" in found[0][1]


def test_measures_of_a_window():
    _, watch = seen([GOOD])
    assert watch.measures["information"] == torch.tensor(math.log(K)) and watch.measures["prototypes_used"] == K
    assert not watch.window_count and not watch.window_codes.any()
    assert CollapseWatch(18, K).measures == {}


def trained(steps, change=lambda task: None, **options):
    task = tiny_task(**{"freeze_epochs": 0, "momentum": 0.9, **options}).train()
    change(task)
    task.window_steps = 2
    optimiser, told = optimiser_of(task, 1e-3), []
    for number in range(steps):
        step(task, optimiser, [batch(16, number % 4)], number, steps)
        told += task.events()
    return task, told


def constant_head(task):
    """The teacher's head gives the same for every image."""
    usual = task.teacher_head.forward
    task.teacher_head.forward = lambda x: usual(x) * 0 + torch.linspace(0, 1, K)


def test_it_fires_on_a_constant_head():
    task, told = trained(20, constant_head)
    assert len(told) == 1 and "collapse" in told[0] and task.scalars()["collapsed"] == 1.0


def test_it_fires_where_targets_are_too_soft():
    _, told = trained(20, teacher_temperature=10.0, centre_momentum=1.0)
    assert "collapse (uniform)" in told[0]


def test_it_fires_where_targets_are_sharp_and_nothing_centres_them():
    def one_direction(task):
        with torch.no_grad():  # as a common part of all features does: one prototype is nearest to every image
            task.teacher_head.mlp[-1].bias.copy_(task.teacher_head.prototypes.v[0] * 10)

    _, told = trained(20, one_direction, teacher_temperature=0.005, centre_momentum=1.0)
    assert "collapse (one-prototype)" in told[0], told


@pytest.mark.parametrize("steps", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_it_is_silent_in_a_healthy_training(steps):
    task, told = trained(steps, momentum=0.99, model={"class_token": "none"})
    assert told == [] and task.watch.measures["information"] > 0.5
    if steps == 200:  # it has learned: codes of other views are foretold better than by their mean
        with torch.no_grad():
            assert float(task(batch(16, 0))["kl"]) < task.watch.measures["information"]


def test_stopping_is_an_option():
    task, told = trained(20, constant_head, on_collapse="stop")
    assert task.ends == told[0]
    assert trained(20, constant_head)[0].ends is None
