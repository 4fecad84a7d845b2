"""The layer is a `norm_layer` for timm's square ViTs with class-token pooling."""

from functools import partial

import torch

from dynavit import DynamicTokenNorm
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
