"""Models of timm with our norms. Shallow and at small sizes; where a swap applies is tested in the room `convert`."""

import pytest
import timm
import torch
from torch import nn

import dynavit
from dynavit.models.timm_entries import TIMM_NAMES
from dynavit.norms import DynamicTokenNorm

VIT = {"img_size": 64, "depth": 2}
SMALL = {
    "vit": VIT,
    "deit": VIT,
    "convit": VIT,
    "swin": {"img_size": 112, "depths": (2, 1, 1, 1), "window_size": 7},
    "pvt": {"depths": (1, 1, 1, 1)},
    "levit": {"where": {"site": "linear_bn"}},
}
PREFIX = {"vit_small_patch14_reg4_dinov2": 5, "vit_little_patch16_reg4_gap_256": 4, "deit_tiny_distilled_patch16_224": 2}


def small(name, norm=None, **options):
    torch.manual_seed(0)
    reduced = {**SMALL[name.split("_")[0]]}
    if "patch14" in name:
        reduced["img_size"] = 56
    if norm is None:
        reduced.pop("where", None)
    return dynavit.create_model(name, norm, num_classes=5, **reduced, **options)


def image_for(model):
    size = 224 if "Levit" in type(model).__name__ else getattr(model.patch_embed, "img_size", (64, 64))[0]
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


def open_branches(model):
    """LeViT's residual branches end in a scale that starts at 0, so that nothing in them has a gradient in the first step."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d) and not module.weight.any():
            nn.init.ones_(module.weight)


# One of each kind; the larger sizes of a kind differ in width and depth only.
LARGER = ("deit_small_patch16_224", "vit_small_patch16_224", "convit_small", "swin_small_patch4_window7_224", "pvt_v2_b3")
KINDS = [name for name in TIMM_NAMES if "base" not in name and name not in LARGER]


# By default DTN in PVT and LeViT: tests/convert.
ELSEWHERE = ("pvt_v2_b0", "levit_128s", "convit_tiny")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] if name in ELSEWHERE else []) for name in KINDS])
def test_dtn_runs_forward_and_backward(name):
    model = small(name, "dtn")
    norms = [module for module in model.modules() if isinstance(module, DynamicTokenNorm)]
    assert norms
    if name.startswith("levit"):
        open_branches(model)
    model(image_for(model)).square().sum().backward()
    assert all(parameter.grad.isfinite().all() for norm in norms for parameter in norm.parameters())
    # Not everywhere: patches in front of the last MLP do not reach a class token.
    assert sum(bool(norm.mean_logit.grad.any() and norm.position.grad.any()) for norm in norms) >= len(norms) / 2
    if name.startswith(("vit", "deit")):
        assert {norm.num_prefix_tokens for norm in norms} == {PREFIX.get(name, 1)}
        assert {norm.heads for norm in norms} == {model.blocks[0].attn.num_heads}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pvt_v2_b3", "swin_small_patch4_window7_224"])
def test_the_papers_models_at_full_depth(name):
    with torch.device("meta"):
        plain = timm.create_model(name)
    model = dynavit.create_model(name, "dtn")
    norms = [module for module in model.modules() if isinstance(module, DynamicTokenNorm)]
    assert len(norms) == 2 * sum(plain_depth(plain))
    extra = sum(2 * norm.heads + norm.position.numel() for norm in norms)
    assert count(model) == count(plain) + extra


def plain_depth(model):
    stages = getattr(model, "layers", None) or model.stages
    return [len(stage.blocks) for stage in stages]


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("norm", dynavit.list_norms())
def test_every_norm_runs_in_a_vision_transformer_of_timm(norm):
    model = small("vit_tiny_patch16_224", norm)
    sites = [module for module in model.modules() if isinstance(module, dynavit.Norm)]
    assert len(sites) >= 4
    logits = model(image_for(model))
    logits.square().sum().backward()
    assert logits.shape == (2, 5)
    assert all(parameter.grad.isfinite().all() for site in sites for parameter in site.parameters())


def test_without_a_norm_it_is_timms_model():
    model = small("vit_tiny_patch16_224")
    torch.manual_seed(0)
    twin = timm.create_model("vit_tiny_patch16_224", num_classes=5, **VIT)
    assert not any(isinstance(module, dynavit.Norm) for module in model.modules())
    image = image_for(model)
    assert torch.equal(model(image), twin(image))


def test_untrained_models_get_the_norms_own_init():
    model = small("deit_tiny_patch16_224", "dtn", norm_options={"offsets": "integer"})
    norm = model.blocks[1].norm2
    bare = dynavit.create_norm("dtn", 192, heads=3, offsets="integer")
    assert torch.equal(norm.position, bare.position)
    assert norm.mean_logit.abs().max() == 0


def test_trained_models_start_near_their_own(monkeypatch):
    build = timm.create_model
    monkeypatch.setattr(
        timm, "create_model", lambda *args, pretrained, **options: build(*args, **options)
    )  # nothing is fetched
    model = small("deit_tiny_patch16_224", "dtn", pretrained=True)
    lam = model.blocks[0].norm1.mean_logit.sigmoid()
    torch.testing.assert_close(lam, torch.full_like(lam, 0.98))


def test_levit_has_no_layer_norm_to_swap():
    with pytest.raises(ValueError, match="no norm to swap.*linear_bn"):
        dynavit.create_model("levit_128s", "dtn")
    before = small("levit_128s")
    model = small("levit_128s", "dtn")

    def batch_norms(model):
        return sum(isinstance(module, nn.BatchNorm1d) for module in model.modules())

    assert batch_norms(model) < batch_norms(before)


def test_our_models_are_not_told_where():
    with pytest.raises(ValueError, match="unknown option of model 'test_vit' 'where'"):
        dynavit.create_model("test_vit", "dtn", where="blocks.0")
