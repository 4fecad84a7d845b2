"""The layer is a `norm_layer` for timm's square ViTs with class-token pooling."""

from functools import partial

import pytest
import torch

from dynavit import DynamicTokenNorm, swap_norms
from dynavit.common.torchvision_shim import ensure_torchvision


def test_norm_layer_of_a_timm_vit():
    ensure_torchvision()
    import timm

    norm = partial(DynamicTokenNorm, heads=3, num_prefix_tokens=1)
    options = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
    model = timm.create_model("vit_tiny_patch16_224", norm_layer=norm, **options)
    assert sum(isinstance(module, DynamicTokenNorm) for module in model.modules()) == 2 * 2 + 1
    model(torch.randn(2, 3, 32, 32)).sum().backward()
    assert all(block.norm1.position.grad.abs().sum() > 0 for block in model.blocks)


def test_where_it_does_not_fit_the_way_that_does_is_named():
    ensure_torchvision()
    import timm

    options = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 1, "num_heads": 3, "class_token": False}
    options["global_pool"] = "avg"
    x = torch.randn(2, 3, 32, 32)
    for prefix, message in ((1, "num_prefix_tokens=0.*dynavit.swap_norms"), (0, "Single vectors.*dynavit.swap_norms")):
        norm = partial(DynamicTokenNorm, heads=3, num_prefix_tokens=prefix)
        with pytest.raises(ValueError, match=message):
            timm.create_model("vit_tiny_patch16_224", norm_layer=norm, **options)(x)
    model = swap_norms(timm.create_model("vit_tiny_patch16_224", **options), "dtn")
    assert sum(isinstance(module, DynamicTokenNorm) for module in model.modules()) == 2
    model(x)
