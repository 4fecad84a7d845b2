"""`look_inside` on models of several kinds, against measures applied by hand."""

import json

import pytest
import torch

import dynavit
from dynavit.analysis.inside.dtn import token_on
from dynavit.analysis.inside.exits import ExitRecorder
from dynavit.models.exit_policy import ExitPolicy


def images(n=3, side=32, seed=0, channels=3):
    return torch.randn(n, channels, side, side, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def vit():
    torch.manual_seed(0)
    options = {"depth": 3, "norm_blocks": 2, "embed_dim": 16, "heads": 2, "class_token": "late"}
    return dynavit.create_model("vit_mini", norm="dtn", num_classes=5, img_size=32, patch_size=8, **options).eval()


def test_numbers_by_hand(vit):
    x = images()
    found = dynavit.look_inside(vit, [x], x[:1])
    with torch.no_grad():
        tokens, grid = vit.embed(x)
        after = vit.blocks[0].norm1(tokens, grid)
        q, k, _ = vit.blocks[0].attn.qkv(after).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1)
    length = after.double().norm(dim=-1)
    cv = (length.std(1, correction=0) / length.mean(1)).mean()
    first = found["magnitudes"]["layers"][0]
    assert (first["path"], first["heads"], first["grid"]) == ("blocks.0.norm1", 2, [4, 4])
    assert first["cv"] == pytest.approx(float(cv), rel=1e-5)
    places = torch.cartesian_prod(torch.arange(4.0), torch.arange(4.0))
    distance = (weights.double() * torch.cdist(places, places)).sum(-1).mean((0, 2))
    layer = found["attention_distance"]["layers"][0]
    assert layer["distance"] == pytest.approx(distance.tolist(), rel=1e-5)
    per_head = after[0].double().unflatten(-1, (2, 8)).norm(dim=-1)  # of the image that is shown
    (shown,) = [each for each in found["magnitudes"]["maps"] if each["path"] == "blocks.0.norm1"]
    assert shown["values"][1] == pytest.approx(per_head[:, 1].tolist(), rel=1e-5)
    json.dumps(found, allow_nan=False)


def test_batches_change_nothing(vit):
    x = images(4)
    whole, parts = dynavit.look_inside(vit, [x], x[:1]), dynavit.look_inside(vit, x.split(1), x[:1])
    for one, two in zip(whole["magnitudes"]["layers"], parts["magnitudes"]["layers"], strict=True):
        assert one["cv_heads"] == pytest.approx(two["cv_heads"], rel=1e-5)
    for one, two in zip(whole["mean_variation"]["layers"], parts["mean_variation"]["layers"], strict=True):
        assert one["coefficient"] == pytest.approx(two["coefficient"], rel=1e-5)
        assert one["low"] <= one["coefficient"] <= one["high"]


def test_rollout_reaches_back_to_before_the_class_token(vit):
    found = dynavit.look_inside(vit, [images()], images(1))["attention_maps"]
    assert found["of"] == "class token"
    assert sum(found["rollout"][0]["values"]) == pytest.approx(1)
    assert len(found["maps"][0]["values"]) == 2  # heads


def test_the_model_is_left_as_it_was(vit):
    vit.train()
    before = {name: value.clone() for name, value in vit.state_dict().items()}
    dynavit.look_inside(vit, [images()], images(1))
    assert vit.training
    assert all(torch.equal(value, before[name]) for name, value in vit.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in vit.modules())
    vit.eval()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_tiny_patch16_224", {"depth": 2, "embed_dim": 12, "num_heads": 2, "patch_size": 8}),
        ("swin_tiny_patch4_window7_224", {"embed_dim": 8, "depths": (2, 2), "num_heads": (2, 2), "window_size": 2}),
        ("cait_xxs24_224", {"depth": 2, "embed_dim": 12, "num_heads": 2, "patch_size": 8}),
        ("pvt_v2_b0", {"embed_dims": (8, 8, 8, 8), "depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2)}),
    ],
)
def test_models_of_timm(name, options):
    sized = {} if name.startswith("pvt") else {"img_size": 32}
    model = dynavit.create_model(name, num_classes=5, **sized, **options)
    found = dynavit.look_inside(model, [images()], images(2))
    assert set(found) == {"magnitudes", "attention_distance", "mean_variation", "directions", "attention_maps"}
    assert 0 <= found["attention_distance"]["local_share"] <= 1
    assert len(found["attention_maps"]["rollout"]) == 2
    assert sum(found["attention_maps"]["rollout"][1]["values"]) == pytest.approx(1)
    json.dumps(found, allow_nan=False)


def test_pyramids_have_one_unit():
    torch.manual_seed(0)
    model = dynavit.create_model("test_pvt", norm="dtn", img_size=32)
    found = dynavit.look_inside(model, [images()], images(1))
    units = {tuple(layer["grid"]): layer["unit"] for layer in found["attention_distance"]["layers"]}
    finest = max(units)
    assert all(unit == finest[0] / grid[0] for grid, unit in units.items())
    assert len({tuple(entry["grid"]) for entry in found["positions"]["inits"]["local"]}) > 1


def test_a_model_without_norms_shows_its_attention():
    torch.manual_seed(0)
    model = dynavit.create_model("test_vit", norm="bn").eval()
    x = images(2, *model.default_cfg["input_size"][1:2], channels=model.default_cfg["input_size"][0])
    assert set(dynavit.look_inside(dynavit.fold(model), [x], x[:1])) == {"attention_distance", "attention_maps"}


def test_norms_without_a_mean_say_so():
    model = dynavit.create_model("test_vit", norm="rms")
    x = images(2, *model.default_cfg["input_size"][1:2], channels=model.default_cfg["input_size"][0])
    layer = dynavit.look_inside(model, [x], x[:1])["mean_variation"]["layers"][0]
    assert layer["coefficient"] is None
    assert "subtracts no mean" in layer["why"]


def test_what_cannot_be_looked_at(vit):
    with pytest.raises(ValueError, match=r"unknown layer 'blocks\.0\.nor1'.*blocks\.0\.norm1"):
        dynavit.look_inside(vit, [images()], images(1), layers=["blocks.0.nor1"])
    with pytest.raises(ValueError, match="no attention.*Conv2d"):
        dynavit.look_inside(dynavit.create_model("resnet10t"), [images()], images(1))
    with pytest.raises(ValueError, match="no images"):
        dynavit.look_inside(vit, [], images(1))


def test_the_middle_token_is_the_papers():
    assert token_on((14, 14), None) == (6, 7)  # the 91st of 196, counted from 0
    assert token_on((8, 8), (0.0, 1.0)) == (0, 7)
    assert token_on((4, 6), (0.5, 0.5)) == (2, 3)


def test_exits_by_hand():
    recorder = ExitRecorder()
    first = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.4, 0.6]]).log()
    last = torch.tensor([[0.3, 0.7], [0.2, 0.8], [0.1, 0.9]]).log()
    recorder([first[:2], last[:2]], torch.tensor([0, 0]))
    recorder([first[2:], last[2:]], torch.tensor([1]))
    found, exits, predicted, confidence = recorder.exits(ExitPolicy((0.8, -1)))
    assert exits.tolist() == [0, 1, 1]
    assert predicted.tolist() == [0, 1, 1]
    assert confidence.tolist() == pytest.approx([0.9, 0.8, 0.9])
    assert found["shares"] == pytest.approx([1 / 3, 2 / 3])
    assert found["accuracy"] == pytest.approx([1, 1 / 3])
    assert found["accuracy_with_exits"] == pytest.approx(2 / 3)
    assert [sum(bin["samples"] for bin in bins) for bins in found["reliability"]] == [3, 3]
    equal, exits, *_ = recorder.exits(None)
    assert equal["thresholds"] is None
    assert exits.tolist() == [0, 1, 1]  # half of three is one, the surest
