"""Transforms for evaluation and training, against timm's and by their properties."""

import json
import random

import numpy as np
import pytest
import torch
from PIL import Image

from dynavit.data.config import AugmentConfig
from dynavit.data.transforms import describe_eval, eval_transform, train_transform

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def image(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def seeded(transform, picture, seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return transform(picture)


def undone(x: torch.Tensor) -> torch.Tensor:
    """Bytes again."""
    return ((x * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]) * 255).round().int()


@pytest.mark.parametrize("shape", [(300, 401), (333, 250), (90, 70)])
def test_evaluation_is_timms(shape):
    from timm.data.transforms_factory import create_transform

    theirs = create_transform(96, interpolation="bicubic", crop_pct=0.875, mean=MEAN, std=STD)
    assert torch.equal(eval_transform((96, 96), MEAN, STD)(image(*shape)), theirs(image(*shape)))


def test_evaluation_of_thumbnails_keeps_every_pixel():
    exact = eval_transform((32, 32), MEAN, STD)(image(32, 32))
    assert torch.equal(undone(exact).permute(1, 2, 0), torch.from_numpy(np.array(image(32, 32))).int())


def test_rectangles_and_grey():
    assert eval_transform((32, 48), MEAN, STD)(image(100, 90)).shape == (3, 32, 48)
    assert eval_transform((8, 8), (0.5,), (0.5,))(image(20, 20)).shape == (1, 8, 8)


@pytest.mark.parametrize("size", [(224, 224), (32, 32), (96, 64)])
def test_a_description_brings_the_transform_back(size):
    description = json.loads(json.dumps(describe_eval(size, MEAN, STD)))
    assert set(description) == {"image_size", "crop_pct", "interpolation", "mean", "std"}
    picture = image(130, 101)
    assert torch.equal(eval_transform(**description)(picture), eval_transform(size, MEAN, STD)(picture))
    description["crop_pct"] = 0.5
    assert not torch.equal(eval_transform(**description)(picture), eval_transform(size, MEAN, STD)(picture))


@pytest.mark.parametrize("recipe", ["auto", "deit"])
def test_deit_is_timms_recipe(recipe):
    from timm.data.transforms_factory import create_transform

    theirs = create_transform(
        32, is_training=True, auto_augment="rand-m7", interpolation="bicubic", re_prob=0.5, re_mode="pixel", mean=MEAN, std=STD
    )
    ours = train_transform((32, 32), AugmentConfig(recipe=recipe, auto_augment="rand-m7", erase=0.5), MEAN, STD)
    for seed in range(20):
        assert torch.equal(seeded(ours, image(50, 60), seed), seeded(theirs, image(50, 60), seed))


def test_posterising_at_full_strength_gives_black():
    transform = train_transform((16, 16), AugmentConfig(recipe="deit", auto_augment="rand-m10-inc1"), (0,) * 3, (1,) * 3)
    results = [seeded(transform, image(16, 16), seed) for seed in range(60)]
    assert any(not result.any() for result in results) and not all(not result.any() for result in results)


def test_light_shifts_and_mirrors_within_the_padding():
    picture = image(16, 16)
    padded = np.pad(np.asarray(picture), ((4, 4), (4, 4), (0, 0)))
    crops = {}
    for top in range(9):
        for left in range(9):
            crop = padded[top : top + 16, left : left + 16]
            crops[crop.tobytes()] = (top, left, False)
            crops[crop[:, ::-1].tobytes()] = (top, left, True)
    transform = train_transform((16, 16), AugmentConfig(recipe="light", padding=0.25), MEAN, STD)
    seen = set()
    for seed in range(300):
        result = undone(seeded(transform, picture, seed)).permute(1, 2, 0).numpy().astype(np.uint8)
        seen.add(crops[result.tobytes()])
    assert {top for top, _, _ in seen} == {left for _, left, _ in seen} == set(range(9))
    assert {mirrored for _, _, mirrored in seen} == {True, False}


def test_light_of_other_sizes_and_without_mirroring():
    plain = AugmentConfig(recipe="light", padding=0.0, flip=False)
    transform = train_transform((8, 12), plain, MEAN, STD)
    results = [seeded(transform, image(16, 24), seed) for seed in range(8)]
    assert results[0].shape == (3, 8, 12) and all(torch.equal(result, results[0]) for result in results)


def test_none_is_evaluation_and_erasing_goes_with_every_recipe():
    picture = image(40, 40)
    expected = eval_transform((32, 32), MEAN, STD)(picture)
    assert torch.equal(train_transform((32, 32), AugmentConfig(recipe="none"), MEAN, STD)(picture), expected)
    erased = seeded(train_transform((32, 32), AugmentConfig(recipe="none", erase=1.0), MEAN, STD), picture, 0)
    changed = (erased != expected).any(0)
    rows, columns = changed.any(1).nonzero(), changed.any(0).nonzero()
    assert changed[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all() and 0 < changed.sum() < 1024 // 2
    light = train_transform((40, 40), AugmentConfig(recipe="light", padding=0.0, flip=False, erase=1.0), MEAN, STD)
    assert not torch.equal(seeded(light, picture, 0), seeded(light, picture, 1))


def test_a_policy_timm_does_not_know():
    with pytest.raises(ValueError, match="augment.auto_augment='foo': timm does not know this policy"):
        train_transform((32, 32), AugmentConfig(recipe="deit", auto_augment="foo"), MEAN, STD)
