"""Small models, and a plain record of what reaches their modules."""

from importlib import import_module

import torch

import dynavit
from dynavit.analysis.probes import observe
from dynavit.common.torchvision_shim import ensure_torchvision


def own(name, norm=None, **options):
    torch.manual_seed(0)
    return stirred(dynavit.create_model(name, norm, **options))


def from_timm(module, cls, **options):
    """A class of timm's, built small."""
    ensure_torchvision()
    torch.manual_seed(0)
    return stirred(getattr(import_module(f"timm.models.{module}"), cls)(num_classes=5, **options))


def vit(**options):
    small = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    return from_timm("vision_transformer", "VisionTransformer", **{**small, **options})


def swin(size=64, **options):
    small = {"patch_size": 4, "window_size": 4, "embed_dim": 16, "depths": (2,), "num_heads": (2,)}
    return from_timm("swin_transformer", "SwinTransformer", **{**small, "img_size": size, **options})


def stirred(model):
    """Every parameter away from its init, so that a part that is left out shows. In evaluation mode."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def images(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def norm_calls(model, x):
    calls = []
    observe(model, x, on_norm=calls.append)
    return calls


def attention_calls(model, x):
    calls = []
    observe(model, x, on_attention=calls.append)
    return {call.path: call for call in calls}


@torch.no_grad()
def arguments_of(model, x, paths):
    """The inputs of each of these modules, from a pass of their own."""
    found, hooks = {}, []

    def keep(path):
        def hook(module, args):
            found[path] = args

        return hook

    for path in paths:
        hooks.append(model.get_submodule(path).register_forward_pre_hook(keep(path)))
    model(x)
    for hook in hooks:
        hook.remove()
    return found


def inputs_of(model, x, paths):
    return {path: args[0] for path, args in arguments_of(model, x, paths).items()}
