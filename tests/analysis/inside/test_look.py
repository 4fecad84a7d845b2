"""`look_inside` on models of several kinds, against measures applied by hand."""

import json

import pytest
import torch

import dynavit
from dynavit.analysis.inside.dtn import token_on
from dynavit.analysis.inside.exits import ExitRecorder
from dynavit.analysis.probes import attention_paths, observe
from dynavit.models.cascade.policy import ExitPolicy


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
    x = images(1)
    found = dynavit.look_inside(vit, [images()], x)["attention_maps"]
    assert found["of"] == "class token"
    tokens, grid = vit.embed(x)
    product = torch.eye(17, dtype=torch.float64)
    with torch.no_grad():
        for i, block in enumerate(vit.blocks):
            if i == vit.token_enters:
                tokens = vit.with_token(tokens)
            q, k, _ = block.attn.qkv(block.norm1(tokens, grid)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
            weights = (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1)[0]
            whole = torch.eye(17, dtype=torch.float64)
            whole[-weights.shape[-1] :, -weights.shape[-1] :] = weights.mean(0).double()
            product = (whole + torch.eye(17)) / 2 @ product
            tokens = block(tokens, grid)
    row = product[0, 1:]
    assert found["rollout"][0]["values"] == pytest.approx((row / row.sum()).tolist(), rel=1e-4)
    of_head = weights[1, 0, 1:].double()  # of the last block
    assert found["maps"][0]["values"][1] == pytest.approx((of_head / of_head.sum()).tolist(), rel=1e-4)


def test_prefix_tokens_have_no_part_in_magnitudes(vit):
    x = images(2)
    found = dynavit.look_inside(vit, [x], x[:1])
    inputs = []
    handle = vit.blocks[2].norm1.register_forward_hook(lambda module, args, output: inputs.append(output))
    with torch.no_grad():
        vit(x)
    handle.remove()
    length = inputs[0][:, 1:].double().norm(dim=-1)  # its first token is the class token
    (layer,) = [each for each in found["magnitudes"]["layers"] if each["path"] == "blocks.2.norm1"]
    assert layer["cv"] == pytest.approx(float((length.std(1, correction=0) / length.mean(1)).mean()), rel=1e-5)


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
    distance = found["attention_distance"]
    class_attention = [path for path in attention_paths(model) if "token_only" in path]
    assert [layer["path"] for layer in distance["layers"]] + class_attention == attention_paths(model)
    assert distance["left_out"] == []
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
    assert found["calibrated"]
    equal, exits, *_ = recorder.exits(None)
    assert not equal["calibrated"]
    assert equal["thresholds"] == pytest.approx([0.9, None])
    assert exits.tolist() == [0, 1, 1]  # half of three is one, the surest


def test_reliability_is_about_probability_whatever_thresholds_are_about():
    recorder = ExitRecorder()
    logits = torch.tensor([[0.6, 0.4], [0.9, 0.1]]).log()
    recorder([logits, logits], torch.tensor([0, 1]))
    found, *_, confidence = recorder.exits(ExitPolicy((0.5, -1), "margin"))
    assert confidence.tolist() == pytest.approx([0.2, 0.8])
    assert [bin["confidence"] for bin in found["reliability"][0]] == pytest.approx([0.6, 0.9])


def test_an_image_on_the_threshold_leaves():
    """Thresholds are confidences of images in their own precision."""
    logits = torch.randn(50, 10, generator=torch.Generator().manual_seed(0))
    recorder = ExitRecorder()
    recorder([logits, logits], torch.zeros(50, dtype=torch.int64))
    on = float(logits.softmax(-1).amax(-1).median())
    found, *_ = recorder.exits(ExitPolicy((on, -1)))
    assert found["shares"][0] == (logits.softmax(-1).amax(-1) >= on).double().mean()


def test_registers_are_no_class_token():
    options = {"depth": 2, "embed_dim": 12, "num_heads": 2, "patch_size": 8, "img_size": 32}
    torch.manual_seed(0)
    model = dynavit.create_model("vit_medium_patch16_reg1_gap_256", num_classes=5, **options)
    seen = []
    observe(model, images(1), on_attention=seen.append)
    found = dynavit.look_inside(model, [images()], images(1))["attention_maps"]
    assert found["of"] == "mean of all tokens"
    weights = seen[-1].weights[0, 0, 1, 1:, 1:].double()
    expected = weights.mean(0) / weights.mean(0).sum()
    assert found["maps"][0]["values"][1] == pytest.approx(expected.tolist(), rel=1e-4)


class Grouped(torch.nn.Module):
    """Attention in groups of tokens whose places the model does not tell."""

    def __init__(self, dim):
        super().__init__()
        self.num_heads, self.qkv = 2, torch.nn.Linear(dim, 3 * dim)

    def forward(self, x, grid=None, mask=None):
        groups = x.unflatten(1, (4, -1)).flatten(0, 1)
        q, k, v = self.qkv(groups).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        return ((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2).flatten(2).unflatten(0, (-1, 4)).flatten(1, 2)


def test_attention_that_cannot_be_placed_is_named():
    torch.manual_seed(0)
    options = {"depth": 2, "embed_dim": 16, "heads": 2, "img_size": 32, "patch_size": 8, "num_classes": 5}
    model = dynavit.create_model("vit_mini", norm="ln", **options)
    model.blocks[1].attn = Grouped(16)
    found = dynavit.look_inside(model, [images()], images(1))["attention_distance"]
    assert [layer["path"] for layer in found["layers"]] == ["blocks.0.attn"]
    assert found["left_out"] == ["blocks.1.attn"]
    reasons = {}
    observe(model, images(), on_attention=lambda call: None, on_left_out=reasons.__setitem__)
    assert reasons == {"blocks.1.attn": "it made no softmax over its tokens that could be read"}


def test_only_a_class_token_asks():
    options = {"depth": 2, "embed_dim": 12, "num_heads": 2, "patch_size": 8, "img_size": 32}
    model = dynavit.create_model("xcit_nano_12_p16_224", num_classes=5, **options)
    found = dynavit.look_inside(model, [images()], images(1))
    assert "attention_distance" not in found
    assert found["attention_maps"]["of"] == "class token"


def test_exits_on_one_grid_are_told_apart():
    from dynavit.analysis.inside.attentions import AttentionMaps

    torch.manual_seed(0)
    splits = (((8, 8, 0),), ((8, 8, 0),))
    model = dynavit.create_model("dvt_vit_micro", splits=splits, img_size=32, num_classes=5, depth=2)
    maps = AttentionMaps(class_token=True)
    observe(model, images(1), on_attention=maps)
    assert {call.path.partition(".blocks")[0] for call in maps.calls} == {"exits.1"}


def test_norms_without_a_known_place_are_named():
    """torch's own layers may put the batch second."""
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, norm_first=True)  # (tokens, batch, channels)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = torch.nn.Conv2d(3, 16, 8, 8)
            self.first = dynavit.create_model("vit_mini", img_size=32, patch_size=8, embed_dim=16, heads=2, depth=1).blocks[0]
            self.second = layer

        def forward(self, x):
            x = self.first(self.patches(x).flatten(2).transpose(1, 2), (4, 4))
            return self.second(x.transpose(0, 1)).mean(0)

    found = dynavit.look_inside(Model(), [images()], images(1))
    assert [each["path"] for each in found["magnitudes"]["layers"]] == ["first.norm1", "first.norm2"]
    assert found["magnitudes"]["left_out"] == ["second.norm1", "second.norm2"]
    with pytest.raises(ValueError, match=r"second\.norm1: got tokens of shape \(16, 3, 16\)"):
        observe(Model(), images(), on_norm=lambda call: None)
