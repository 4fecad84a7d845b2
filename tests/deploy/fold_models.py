"""Models whose norms have something to fold, and small modules built from named pieces."""

import copy
from unittest import mock

import torch
from torch import nn

import dynavit
from convert.models import timm_model
from dynavit.convert.trace import sample_input, tensors_in
from dynavit.deploy.fold.plan import FoldPlan, apply_fold_plan
from dynavit.norms import Norm

VIT = {"num_classes": 5, "img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "heads": 2}


def settled(model, seed=0):
    """The model in evaluation mode, as if trained: statistics, weights and biases of its norms are not those of the start."""
    generator = torch.Generator().manual_seed(seed)

    def random(like):
        return torch.rand(like.shape, generator=generator).to(like)

    for module in model.modules():
        if isinstance(module, Norm) or "Norm" in type(module).__name__:
            for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
                if name == "running_var" or name == "weight":
                    tensor.data.copy_(0.5 + random(tensor))
                elif name in ("running_mean", "bias"):
                    tensor.data.copy_(random(tensor) - 0.4)
        elif isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
            module.bias.data.copy_(random(module.bias) - 0.5)
    return model.eval()


def all_bn(model):
    return settled(dynavit.swap_norms(model, "bn", where="*", start="fresh"))


def small_vit(**options):
    torch.manual_seed(0)
    return dynavit.create_model("vit_small_star", **{**VIT, **options})


def small_swin():
    """Two stages on 14 x 14 and 7 x 7 tokens; the second block shifts its windows."""
    sizes = {"img_size": 56, "depths": (2, 1), "embed_dim": 12, "num_heads": (1, 2)}
    return timm_model("swin_tiny_patch4_window7_224", num_classes=5, **sizes)


class Through(nn.Module):
    """Holds parts by name; what it does with its input is a function of the parts."""

    def __init__(self, run, **parts):
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.run(self, x)


def fold(model, *, fresh=None, images=None, **options):
    """`dynavit.fold`, whose plan must build the same model again: from JSON, without looking at a graph, bit by bit.

    `fresh` builds another model of the kind, by default a copy full of noise; `images` are compared, by default the example.
    """
    folded = dynavit.fold(model, **options)
    plan = FoldPlan.from_json(folded.fold_plan.to_json())
    assert plan.to_dict() == folded.fold_plan.to_dict()
    like = next(iter(folded.state_dict().values()))
    with torch.random.fork_rng():
        other = noise(model) if fresh is None else fresh()
        with mock.patch("torch.export.export", side_effect=AssertionError("a plan needs no graph")):
            loaded = apply_fold_plan(other.train(), plan).to(like.dtype)
    loaded.load_state_dict(folded.state_dict())
    assert str(loaded) == str(folded) and not any(module.training for module in loaded.modules())
    x = next(x for x in (images, options.get("example"), sample_input(model, None)) if x is not None)
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(tensors_in(folded(x)), tensors_in(loaded(x)), strict=True))
    return folded


def noise(model):
    """A copy with the same structure that has nothing of the model's values."""
    other = copy.deepcopy(model)
    for tensor in other.state_dict().values():  # not constants that the model computes when it is built
        if tensor.is_floating_point():
            tensor.uniform_(2, 3)
    return other


def difference(model, folded, x):
    """Largest difference of outputs, relative to the largest output."""
    with torch.no_grad():
        before, after = model(x), folded(x)
    return float((before - after).abs().max() / before.abs().max())
