"""Mixup, CutMix and label smoothing against formulas written out by sample, and against timm."""

import numpy as np
import pytest
import torch

from dynavit.common.batch import Batch
from dynavit.common.torchvision_shim import ensure_torchvision
from dynavit.data.config import AugmentConfig
from dynavit.data.mixing import Mixer, cut_and_paste, draw_strength
from dynavit.data.sampling import derive_seed

CLASSES = 5


def batch_of(size: int, dtype: torch.dtype = torch.float64) -> Batch:
    generator = torch.Generator().manual_seed(size)
    inputs = torch.randn(size, 3, 8, 6, dtype=dtype, generator=generator)
    labels = torch.randint(CLASSES, (size,), generator=generator)
    return Batch(inputs, labels, torch.arange(size), size, size)


def parameters(augment: AugmentConfig, seed: int, batch: Batch, place: tuple[int, int, int]):
    """Numbers that the mixer draws at this place: cutmix or not, λ, and the mask of pixels that stay."""
    random = np.random.default_rng(derive_seed(seed, *place))
    cut, lam = draw_strength(augment, random)
    stays = torch.full(batch.inputs.shape[-2:], lam, dtype=torch.float64)
    if cut:
        ones = torch.stack([torch.zeros_like(stays), torch.ones_like(stays)])[:, None]
        stays = 1 - cut_and_paste(ones, lam, random)[0][0, 0]
        lam = float(stays.mean())
    return cut, lam, stays


@pytest.mark.parametrize("augment", [{"mixup": 0.8}, {"cutmix": 1.0}, {"mixup": 0.8, "cutmix": 1.0, "label_smoothing": 0.1}])
@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_every_sample_follows_the_formula(augment, size):
    augment, batch = AugmentConfig(**augment), batch_of(size)
    for step in range(6):
        _, lam, stays = parameters(augment, 3, batch, (1, step, 2))
        mixed = Mixer(CLASSES, augment, 3)(batch, 1, step, 2)
        for i in range(size):
            partner = size - 1 - i
            expected = stays * batch.inputs[i] + (1 - stays) * batch.inputs[partner]
            torch.testing.assert_close(mixed.inputs[i], expected, rtol=1e-12, atol=1e-12)
            target = torch.full((CLASSES,), augment.label_smoothing / CLASSES, dtype=torch.float64)
            target[batch.targets[i]] += (1 - augment.label_smoothing) * lam
            target[batch.targets[partner]] += (1 - augment.label_smoothing) * (1 - lam)
            torch.testing.assert_close(mixed.targets[i], target, rtol=1e-12, atol=1e-12)
        assert (mixed.index, mixed.count, mixed.step_count) == (batch.index, batch.count, batch.step_count)


@pytest.mark.parametrize("augment", [{"mixup": 0.8}, {"cutmix": 1.0, "label_smoothing": 0.1}])
def test_the_same_as_timm_with_the_same_lambda_and_box(augment, monkeypatch):
    ensure_torchvision()
    from timm.data import Mixup

    augment, batch = AugmentConfig(**augment), batch_of(6, torch.float32)
    theirs = Mixup(augment.mixup, augment.cutmix, label_smoothing=augment.label_smoothing, num_classes=CLASSES)
    for step in range(8):
        random = np.random.default_rng(derive_seed(0, 0, step, 0))
        cut, lam = draw_strength(augment, random)
        monkeypatch.setattr(theirs, "_params_per_batch", lambda drawn=(lam, cut): drawn)
        with monkeypatch.context() as patch:
            patch.setattr(np.random, "randint", lambda low, high, size, random=random: random.integers(low, high, size))
            inputs, targets = theirs(batch.inputs.clone(), batch.targets)
        ours = Mixer(CLASSES, augment, 0)(batch, 0, step, 0)
        assert torch.equal(ours.inputs, inputs)
        torch.testing.assert_close(ours.targets, targets)


def test_both_are_used_and_boxes_are_cut_at_the_border():
    augment, batch = AugmentConfig(mixup=0.8, cutmix=1.0), batch_of(2)
    drawn = [parameters(augment, 0, batch, (0, step, 0)) for step in range(60)]
    cuts = [cut for cut, _, _ in drawn]
    assert 15 < sum(cuts) < 45
    assert any((1 - stays)[0].any() for cut, _, stays in drawn if cut)  # some reach the first row
    assert all(0 <= lam <= 1 for _, lam, _ in drawn)


def test_smoothing_alone_leaves_images_as_they_are():
    augment, batch = AugmentConfig(label_smoothing=0.2), batch_of(3)
    mixed = Mixer(CLASSES, augment, 0)(batch, 0, 0, 0)
    assert mixed.inputs is batch.inputs
    expected = 0.2 / CLASSES + 0.8 * torch.nn.functional.one_hot(batch.targets, CLASSES).double()
    torch.testing.assert_close(mixed.targets, expected)


def test_repeatable_by_place_and_without_touching_global_generators():
    batch, mixer = batch_of(4), Mixer(CLASSES, AugmentConfig(mixup=0.8), 0)
    before, original = np.random.get_state()[1].copy(), batch.inputs.clone()
    first = mixer(batch, 1, 2, 3)
    assert torch.equal(first.inputs, mixer(batch, 1, 2, 3).inputs)
    others = [mixer(batch, 0, 2, 3), mixer(batch, 1, 0, 3), mixer(batch, 1, 2, 0)]
    others.append(Mixer(CLASSES, AugmentConfig(mixup=0.8), 1)(batch, 1, 2, 3))
    assert all(not torch.equal(first.inputs, other.inputs) for other in others)
    assert (np.random.get_state()[1] == before).all() and torch.equal(batch.inputs, original)


def test_wanted():
    assert not Mixer.wanted(AugmentConfig(recipe="deit", erase=0.25, repeats=3))
    for wish in ({"mixup": 0.1}, {"cutmix": 0.1}, {"label_smoothing": 0.1}):
        assert Mixer.wanted(AugmentConfig(**wish))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mixup": -1.0}, "augment.mixup=-1.0"),
        ({"cutmix": -0.5}, "augment.cutmix=-0.5"),
        ({"label_smoothing": 1.0}, "augment.label_smoothing=1.0"),
    ],
)
def test_impossible_strengths_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Mixer(CLASSES, AugmentConfig(**wrong), 0)
