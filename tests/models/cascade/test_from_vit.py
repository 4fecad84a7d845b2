"""A plain vision transformer as the start of every exit: an exit computes what it computes, on the same grid."""

import math

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from timm.layers.patch_embed import resample_patch_embed

import dynavit
from dynavit.engine.optimiser import layer_scales
from dynavit.models.cascade.from_vit import exits_from_vit, is_plain_vit, reuse_names
from dynavit.models.layers import resize_positions
from dynavit.runs.initial import initial_weights

SIZES = {"depth": 2, "embed_dim": 24, "img_size": 32}
SPLITS = (((16, 16, 0),), ((8, 8, 0),))  # 2x2 tokens, and 4x4 as the plain model has


def plain(name="deit_tiny_patch16_224", **options):
    """A plain vision transformer of timm, every number drawn."""
    import timm

    torch.manual_seed(0)
    sizes = {**SIZES, "patch_size": 8, "num_heads": 3, "num_classes": 5, **options}
    model = timm.create_model(name, **sizes).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def cascade(**options):
    torch.manual_seed(1)
    own = {**SIZES, "heads": 3, "splits": SPLITS, "num_classes": 5, "feature_hidden": 8, "feature_width": 6, **options}
    return dynavit.create_model("dvt_deit_tiny", **own).double().eval()


def started(source, model, tmp_path):
    save_file(source.state_dict(), tmp_path / "vit.safetensors")
    return initial_weights(model, str(tmp_path / "vit.safetensors"))


def images(seed=3):
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@torch.no_grad()
def near(a, b, tolerance=1e-10):
    return (a - b).abs().max() <= tolerance * b.abs().max()


@pytest.mark.parametrize("relation", [False, True])
def test_an_exit_with_the_sources_patches_is_the_source(tmp_path, relation):
    source, model = plain(), cascade(feature_reuse=False, relation_reuse=relation)
    notes = started(source, model, tmp_path)
    coarse, fine = model(images())
    assert near(fine, source(images()))
    assert not near(coarse, source(images()), 1e-3)
    assert "every exit starts from it" in notes[-1]


@pytest.mark.parametrize(
    "name", ["deit3_small_patch16_224", "flexivit_small", "vit_small_patch14_dinov2", "vit_small_patch32_224"]
)
def test_any_vision_transformer_of_timm_with_a_class_token_is_an_exit(tmp_path, name):
    """LayerScale (DeiT III, DINOv2) and a class token without a position (DeiT III, FlexiViT) too."""
    source, model = plain(name), cascade(feature_reuse=False)
    started(source, model, tmp_path)
    assert near(model(images())[1], source(images()))


def test_a_source_without_biases_of_its_layers(tmp_path):
    source, model = plain("deit3_small_patch16_224", proj_bias=False), cascade(feature_reuse=False)
    with pytest.raises(ValueError, match=r"missing: exits.0.blocks.0.attn.proj.bias"):
        started(source, model, tmp_path)


def test_patches_and_positions_of_another_size(tmp_path):
    """The oracle: a patch that is resized as timm resizes it gives the same token, and positions are interpolated."""
    source, model = plain(), cascade()
    started(source, model, tmp_path)
    small = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    large = F.interpolate(small, (16, 16), mode="bicubic", antialias=True)
    tokens, grid = model.exits[0].tokenizer(large)
    assert grid == (1, 1)
    assert near(tokens[:, 0], source.patch_embed.proj(small)[:, :, 0, 0], 1e-5)  # timm finds the inverse in float32
    kernel = source.patch_embed.proj.weight
    assert torch.equal(model.exits[0].tokenizer.proj.weight, resample_patch_embed(kernel, [16, 16]))
    assert torch.equal(model.exits[1].tokenizer.proj.weight, kernel)
    positions = source.pos_embed
    assert torch.equal(model.exits[1].pos_embed, positions)
    assert torch.equal(model.exits[0].pos_embed, resize_positions(positions, (4, 4), (2, 2), 1))
    assert torch.equal(model.exits[0].pos_embed[:, 0], positions[:, 0])
    assert torch.equal(model.exits[0].cls_token, source.cls_token)


@pytest.mark.parametrize("norm", ["ln", "dtn"])
def test_reused_channels_are_silent_and_the_norm_makes_up_for_them(tmp_path, norm):
    """[x, 0] through the wider norm and layer is x through the source's, for tokens with mean 0."""
    source, model = plain(), cascade(norm=norm)
    started(source, model, tmp_path)
    block, theirs = model.exits[1].blocks[0], source.blocks[0]
    features = torch.randn(2, 5, 24, dtype=torch.float64)
    assert not block.feature_reuse(features, model.exits[1].upsample(features)).any()
    x = torch.randn(2, 17, 24, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    x = x - x.mean(-1, keepdim=True)
    parts = [part.unflatten(-1, (block.join_heads, -1)) for part in (x, torch.zeros(2, 17, 6).double())]
    joined = torch.cat(parts, -1).flatten(-2)
    wide = F.layer_norm(joined, (30,), block.norm2.weight, block.norm2.bias, 1e-6 * 24 / 30)
    expected = theirs.mlp.fc1(F.layer_norm(x, (24,), theirs.norm2.weight, theirs.norm2.bias, 1e-6))
    assert near(F.linear(wide, block.mlp.fc1.weight, block.mlp.fc1.bias), expected, 1e-6)
    own = torch.arange(30).unflatten(0, (block.join_heads, -1))[:, : 24 // block.join_heads].flatten()
    assert near(block.norm2.weight[own], theirs.norm2.weight * math.sqrt(24 / 30))


def test_reuse_learns_from_the_first_step(tmp_path):
    source, model = plain(), cascade()
    started(source, model, tmp_path)
    sum(logits.square().sum() for logits in model.train()(images())).backward()
    silent = [name for name in reuse_names(model) if name.endswith(("mlp.fc2.weight", "reduce.weight"))]
    silent.remove("exits.1.blocks.1.feature_reuse.mlp.fc2.weight")  # only the class token goes on, which gets no features
    for name in silent:
        assert model.get_parameter(name).grad.abs().max() > 0, name
        assert not model.get_parameter(name).any()
    assert len(silent) == 2


def test_heads_for_other_classes_start_fresh(tmp_path):
    notes = started(plain(num_classes=7), model := cascade(), tmp_path)
    assert sum("starts fresh: it has 5 classes, the source's 7" in note for note in notes) == 2
    assert [logits.shape for logits in model(images())] == [(2, 5), (2, 5)]


@pytest.mark.parametrize(
    ("source", "model", "message"),
    [
        ({}, {"depth": 3}, "missing: exits.0.blocks.2"),
        ({"depth": 3}, {}, "surplus: exits.0.blocks.2"),
        ({}, {"embed_dim": 36}, "of another shape"),
        ({}, {"splits": (((3, 2, 1), (8, 8, 0)), ((8, 8, 0),)), "tokens": "conv"}, "exit 1 .* in several steps"),
        ({"reg_tokens": 2}, {}, "has register tokens: the exits of a cascade start from"),
        ({"name": "deit_tiny_distilled_patch16_224"}, {}, "has a distillation token"),
        ({"pre_norm": True}, {}, "has a norm before its blocks"),
        ({"global_pool": "avg"}, {}, "has a mean of its patches"),
        ({"global_pool": "avg", "class_token": False}, {}, "has no class token"),
        ({"img_size": (32, 40)}, {}, "one class token in front of a grid"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_changes(tmp_path, source, model, message):
    source, model = plain(**source), cascade(**model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        started(source, model, tmp_path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_other_heads_are_refused_where_they_are_known(monkeypatch):
    import timm

    source = plain(num_heads=4).float()
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: source)
    with pytest.raises(ValueError, match="4 heads in timm:.* and 3 in the cascade"):
        initial_weights(cascade().float(), "timm:deit_tiny_patch16_224")


def test_a_cascades_own_weights_are_no_plain_model():
    assert not is_plain_vit(cascade().state_dict())
    assert is_plain_vit(plain().state_dict())


def test_every_name_of_the_cascade_is_filled():
    model = cascade()
    found = exits_from_vit(model, plain().state_dict(), (4, 4))
    assert found.keys() | set(reuse_names(model)) == model.state_dict().keys()
    assert not found.keys() & set(reuse_names(model))


def test_layers_of_all_exits_learn_at_the_rate_of_their_depth():
    scales = layer_scales(cascade(), 0.5)
    assert scales["exits.0.tokenizer.proj.weight"] == scales["exits.1.pos_embed"] == scales["exits.1.cls_token"]
    assert scales["exits.0.blocks.0.mlp.fc1.weight"] == scales["exits.1.blocks.0.norm1.weight"]
    assert scales["exits.0.blocks.1.attn.qkv.weight"] == 2 * scales["exits.0.blocks.0.attn.qkv.weight"]
    assert scales["exits.0.blocks.0.attn.qkv.weight"] == 2 * scales["exits.0.cls_token"]
    fresh = [scales[name] for name in reuse_names(cascade())]
    assert set(fresh) == {scales["exits.1.norm.weight"]} and scales["exits.1.head.weight"] == 1
