"""Models and tokens that fit images of a size."""

import pytest

from dynavit.models.fit_image import grids, model_for, options_for_images
from dynavit.models.registry import create_model


def fitted(name, side, **given):
    """(rows, cols) of each exit's tokens, and the options they follow from."""
    import torch

    options = options_for_images(name, (side, side), given)
    with torch.device("meta"):
        return grids(create_model(name, **given, **options)), options


@pytest.mark.parametrize(
    ("side", "model", "grid"),
    [(8, "vit_micro", 4), (28, "vit_mini", 7), (32, "vit_mini", 8), (64, "vit_mini", 8), (224, "vit_photo", 14)],
)
def test_the_model_that_is_taken_if_none_is_named(side, model, grid):
    assert model_for((side, side)) == model
    assert fitted(model, side)[0] == [(grid, grid)]


@pytest.mark.parametrize(
    ("name", "side", "grid"),
    [
        ("vit_micro", 32, 8),  # not 16x16
        ("vit_micro", 224, 14),  # not 112x112
        ("vit_mini", 96, 12),
        ("test_vit", 224, 14),
        ("vit_tiny", 28, 14),  # made for 224 pixels
        ("vit_tiny", 224, 14),
        ("vit_small_patch16_224", 32, 8),
    ],
)
def test_patches_follow_the_images(name, side, grid):
    assert fitted(name, side)[0] == [(grid, grid)]


@pytest.mark.parametrize(
    ("name", "side", "own"),
    [
        ("dvt_vit_micro", 32, [(4, 4), (8, 8)]),
        ("dvt_vit_micro", 224, [(7, 7), (14, 14)]),  # not 28x28 and 56x56
        ("dvt_vit_mini", 224, [(7, 7), (14, 14)]),
        ("dvt_vit_digits", 8, [(2, 2), (4, 4)]),
        ("dvt_vit_digits", 32, [(4, 4), (8, 8)]),
        pytest.param("dvt_deit_small", 224, [(7, 7), (10, 10), (14, 14)], marks=pytest.mark.slow),
    ],
)
def test_tokens_of_cascades_follow_the_images(name, side, own):
    assert fitted(name, side)[0] == own


def test_a_group_of_options_that_is_not_about_tokens_decides_nothing():
    assert fitted("dvt_vit_micro", 224, tokens={"pool": "mean"})[0] == [(7, 7), (14, 14)]
    splits = [[[3, 2, 1], [6, 4, 1]], [[3, 2, 1], [3, 2, 1]]]
    assert fitted("dvt_vit_micro", 64, tokens={"splits": splits})[0] == [(8, 8), (16, 16)]


@pytest.mark.parametrize("name", ["vit_tiny", pytest.param("deit_tiny_patch16_224", marks=pytest.mark.slow)])
def test_hundreds_of_tokens_need_a_word(name):
    with pytest.raises(ValueError, match="24x24 = 576 tokens.*--model_options.patch_size 32 makes 12x12.*patch_size 16 says"):
        options_for_images(name, (384, 384), {})
    assert fitted(name, 384, patch_size=16)[0] == [(24, 24)]
    assert fitted(name, 384, patch_size=32)[0] == [(12, 12)]


def test_a_model_that_was_made_for_many_tokens_may_have_them():
    assert "patch_size" not in options_for_images("vit_base_patch16_384", (384, 384), {})
    assert "patch_size" not in options_for_images("swin_tiny_patch4_window7_224", (224, 224), {})


def test_a_size_that_no_patch_divides_is_left_to_the_model():
    with pytest.raises(ValueError, match="97x97 cannot be cut into patches"):
        create_model("vit_micro", **options_for_images("vit_micro", (97, 97), {}))
