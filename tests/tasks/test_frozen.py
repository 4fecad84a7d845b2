"""Which tokens of which blocks, and what is undefined."""

import pytest
import torch

from dynavit.models import create_model
from dynavit.tasks.frozen import FeatureSet, blocks_with_token, token_pieces
from tasks.dino_tiny import SIDE, tiny_model


def by_hand(model, images, blocks):
    """Class token or mean patch after each of the last blocks, behind the last norm."""
    x, grid = model.embed(images)
    found = []
    for i in range(len(model.blocks)):
        x = model.run_block(i, x, grid)
        tokens = model.norm(x)
        prefix = model.prefix_tokens(i)
        found.append(tokens[:, 0] if prefix else tokens.mean(1))
        mean = tokens[:, prefix:].mean(1)
    return torch.stack(found[-blocks:], 1), mean


@pytest.mark.parametrize("class_token", ["late", "start", "none"])
def test_pieces(class_token):
    torch.manual_seed(0)
    model = tiny_model("dtn", class_token=class_token).eval()
    images = torch.randn(3, 1, SIDE, SIDE)
    tokens, mean = token_pieces(model, images, 3)
    with torch.no_grad():
        expected = by_hand(model, images, 3)
        torch.testing.assert_close(tokens[:, -1], model(images))  # the feature that is trained
    torch.testing.assert_close((tokens, mean), expected)
    assert FeatureSet.of("cls_or_mean:2").select(tokens, mean).equal(tokens[:, 1:].flatten(1))
    assert FeatureSet.of("cls_or_mean:1+mean").select(tokens, mean).equal(torch.cat([tokens[:, 2], mean], 1))


def test_a_late_class_token_does_not_reach_far():
    model = tiny_model(depth=5, norm_blocks=3)
    assert blocks_with_token(model) == 2
    FeatureSet.of("cls:2").check(model)
    FeatureSet.of("cls_or_mean:4").check(model)
    with pytest.raises(
        ValueError, match="cls:3 need a class token in the last 3 blocks, and the model's is there in the last 2 of 5"
    ):
        FeatureSet.of("cls:3").check(model)
    with pytest.raises(ValueError, match="the model has 5 blocks, not 6"):
        FeatureSet.of("cls_or_mean:6").check(model)
    with pytest.raises(ValueError, match="in the last 0 of 3; take cls_or_mean:1"):
        FeatureSet.of("cls:1").check(tiny_model(class_token="none"))


@pytest.mark.parametrize("name", ["cls", "mean:2", "cls:0", "cls:2+cls", ""])
def test_names_that_are_none(name):
    with pytest.raises(ValueError, match="cls:N or cls_or_mean:N of the last N blocks"):
        FeatureSet.of(name)


def test_names_come_back():
    for name in ("cls:2", "cls_or_mean:4", "cls:1+mean"):
        assert str(FeatureSet.of(name)) == name


def test_models_of_timm_and_pyramids():
    images = torch.randn(2, 3, 32, 32)
    timms = create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, num_classes=0).eval()
    tokens, mean = token_pieces(timms, images, 2)
    with torch.no_grad():
        all_tokens = timms.forward_features(images)
    torch.testing.assert_close(tokens[:, -1], all_tokens[:, 0])
    torch.testing.assert_close(mean, all_tokens[:, 1:].mean(1))
    pyramid = create_model("test_pvt", num_classes=7).eval() if "test_pvt" in __import__("dynavit").list_models() else None
    if pyramid is not None:
        tokens, mean = token_pieces(pyramid, torch.randn(2, *pyramid.default_cfg["input_size"]), 1)
        assert tokens.shape == (2, 1, pyramid.num_features) and tokens[:, 0].equal(mean)
