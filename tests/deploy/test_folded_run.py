"""A folded run comes back from its plan, an older one without a plan by folding again, and damage is named."""

import json
import shutil
from dataclasses import replace
from unittest import mock

import pytest
import torch

import dynavit
from dynavit.runs.fold import fold_run
from dynavit.runs.model_files import ModelCard
from runs.made_up_runs import random_run, write_weights

IMAGES = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run with DTN in its only block, on a grid of 4 x 4 tokens, and LayerNorm behind it; beside it, folded."""
    root = tmp_path_factory.mktemp("runs")
    run = random_run(root / "x")
    card = ModelCard.read(run)
    card = replace(card, model=card.model | {"norm": "dtn"})
    card.write(run)
    shutil.rmtree(run / "checkpoints" / "last")
    write_weights(run, card.model, seed=0)
    (run / "env.json").write_text("{}")
    fold_run(run, grid=(4, 4))
    fold_run(run, root / "any-grid")
    return root


def answers(path):
    with torch.no_grad():
        return dynavit.load(path)(IMAGES)


def without_export():
    return mock.patch("torch.export.export", side_effect=AssertionError("loading exports nothing"))


def changed_plan(run, tmp_path, change):
    """A copy of a folded run whose fold entry in model.json went through `change`."""
    copy = shutil.copytree(run, tmp_path / "copy")
    card = json.loads((copy / "model.json").read_text())
    change(card["fold"])
    (copy / "model.json").write_text(json.dumps(card))
    return copy


def test_loading_follows_the_plan_and_draws_no_graph(runs):
    with without_export():
        folded = dynavit.load(runs / "x-folded")
    assert type(folded.blocks[0].norm1).__name__ == "FrozenTokenNorm" and folded.norm.weight is None
    assert folded.fold_report.frozen == ["blocks.0.norm1", "blocks.0.norm2"] and folded.fold_report.error < 1e-5
    expected = answers(runs / "x")
    assert torch.allclose(answers(runs / "x-folded"), expected, atol=1e-5 * float(expected.abs().max()))


def test_a_folded_run_can_be_folded_again(runs, tmp_path):
    fold_run(runs / "x-folded", tmp_path / "twice")
    plans = [ModelCard.read(path).fold["plan"] for path in (runs / "x-folded", tmp_path / "twice")]
    assert plans[0] == plans[1]
    with without_export():
        assert torch.equal(answers(tmp_path / "twice"), answers(runs / "x-folded"))


def test_a_run_that_was_folded_before_there_were_plans(runs, tmp_path):
    old = changed_plan(runs / "any-grid", tmp_path, lambda fold: fold.pop("plan"))
    assert torch.equal(answers(old), answers(runs / "any-grid"))
    with without_export(), pytest.raises(ValueError, match="loading exports nothing"):
        dynavit.load(old)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fold: fold.update(plan=None), "a fold plan of version None"),
        (lambda fold: fold["plan"]["steps"][0].update(kind="exec"), "step 1 of the fold plan is of kind 'exec'"),
        (
            lambda fold: fold["plan"]["steps"][0].update(paths=["blocks.7.norm1"]),
            "VisionTransformer has no module blocks.7.norm1",
        ),
        (lambda fold: fold["plan"]["steps"].clear(), "does not fit the model of"),
    ],
)
def test_a_plan_that_does_not_fit_is_named_with_its_file(runs, tmp_path, change, message):
    copy = changed_plan(runs / "x-folded", tmp_path, change)
    with pytest.raises(ValueError, match=message) as caught:
        dynavit.load(copy)
    assert str(copy / "model.json") in str(caught.value)


def test_a_run_folds_for_the_grid_of_its_own_images(runs, tmp_path):
    with pytest.raises(ValueError, match="gives a grid of 4x4 tokens, not 2x8"):
        fold_run(runs / "x", tmp_path / "y", grid=(2, 8))
    assert not (tmp_path / "y").exists()
