"""The steps from a model to its folded form. They are plain data, so that they can be taken again on a model built afresh.

A step changes structure and no values: which module stands at a path, and which parameters it has. `fold` takes a step and then
writes the weights; `apply_fold_plan` takes the same steps, and `load_state_dict` brings the weights. Each step checks what it
meets, so a plan for another model is refused.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from ...norms import DynamicTokenNorm, LayerNorm, RMSNorm
from .frozen_dtn import FrozenTokenNorm
from .layers import build_layer
from .one_size import OneSize
from .sites import TOKEN_NORMS, Folded, carry_hooks, without_affine


@dataclass(frozen=True)
class Step:
    """Base of all steps. Paths are those of `named_modules`; several paths in one step are those of one shared module."""

    kind: ClassVar[str]

    def take(self, model: nn.Module) -> nn.Module:
        """The model after this step: the same object, changed in place, unless the step replaces the model itself."""
        raise NotImplementedError


@dataclass(frozen=True)
class FoldAway(Step):
    """A norm that is an affine map returns its input; activations that it holds stay, under the names `keep`."""

    kind = "fold_away"
    paths: tuple[str, ...]
    keep: tuple[str, ...] = ()

    def take(self, model: nn.Module) -> nn.Module:
        norm = _module_at(model, *self.paths)
        if not (hasattr(norm, "affine_map") or isinstance(norm, _BatchNorm)):
            raise ValueError(f"{self.paths[0]} is {_named(norm)}, and no norm that is an affine map at evaluation")
        parts = [_module_at(norm, name) for name in self.keep]
        return _put(model, self.paths, (nn.Sequential(*parts) if parts else Folded()).eval())


@dataclass(frozen=True)
class DropAffine(Step):
    """A norm that looks at its tokens loses its weight and bias."""

    kind = "drop_affine"
    path: str

    def take(self, model: nn.Module) -> nn.Module:
        norm: Any = _module_at(model, self.path)
        if not isinstance(norm, TOKEN_NORMS) or (norm.weight is None and getattr(norm, "bias", None) is None):
            raise ValueError(f"{self.path} is {_named(norm)}, and no norm with a weight or bias")
        without_affine(norm)
        return model


@dataclass(frozen=True)
class DropMean(Step):
    """A LayerNorm without weight and bias becomes an RMS norm."""

    kind = "drop_mean"
    paths: tuple[str, ...]

    def take(self, model: nn.Module) -> nn.Module:
        old = _module_at(model, *self.paths)
        if not isinstance(old, LayerNorm | nn.LayerNorm) or old.weight is not None or old.bias is not None:
            raise ValueError(f"{self.paths[0]} is {_named(old)}, and no LayerNorm without weight and bias")
        new: nn.Module = (
            RMSNorm(old.dim, heads=old.heads, eps=old.eps, affine=False)
            if isinstance(old, LayerNorm)
            else nn.RMSNorm(old.normalized_shape, old.eps, elementwise_affine=False)
        )
        return _put(model, self.paths, carry_hooks(old, new))


@dataclass(frozen=True)
class Freeze(Step):
    """A DTN becomes a `FrozenTokenNorm` for one grid, with `prefix` tokens in front of it."""

    kind = "freeze"
    paths: tuple[str, ...]
    grid: tuple[int, ...]
    prefix: int

    def take(self, model: nn.Module) -> nn.Module:
        norm = _module_at(model, *self.paths)
        if type(norm) is not DynamicTokenNorm:
            raise ValueError(f"{self.paths[0]} is {_named(norm)}, and no DynamicTokenNorm")
        if len(self.grid) != norm.ndim or min(self.grid) < 1 or self.prefix < 0:
            raise ValueError(f"{self.paths[0]} takes no grid of {self.grid} with {self.prefix} tokens in front")
        return _put(model, self.paths, carry_hooks(norm, FrozenTokenNorm(norm, self.grid, self.prefix)))


@dataclass(frozen=True)
class AddBias(Step):
    """A linear layer or convolution without a bias gets one, of zeros."""

    kind = "add_bias"
    path: str

    def take(self, model: nn.Module) -> nn.Module:
        layer = _module_at(model, self.path)
        if not isinstance(layer, nn.Linear | _ConvNd) or layer.bias is not None:
            raise ValueError(f"{self.path} is {_named(layer)}, and no linear layer or convolution without a bias")
        zeros = layer.weight.new_zeros(layer.out_channels if isinstance(layer, _ConvNd) else layer.out_features)
        layer.bias = nn.Parameter(zeros, requires_grad=layer.weight.requires_grad)
        return model


@dataclass(frozen=True)
class Fuse(Step):
    """A module becomes one layer, described as `layers.describe_layer` does. The path of the model itself is empty."""

    kind = "fuse"
    path: str
    into: dict[str, Any]

    def take(self, model: nn.Module) -> nn.Module:
        old, new = _module_at(model, self.path), build_layer(self.into)
        like = next((p for p in old.parameters() if p.is_floating_point()), torch.empty(0))
        return _put(model, (self.path,), new.to(like.device, like.dtype).eval())


@dataclass(frozen=True)
class OwnFuse(Step):
    """A module becomes what its own `fuse()` returns, of class `into`: for results that `Fuse` cannot describe."""

    kind = "own_fuse"
    path: str
    into: str

    def take(self, model: nn.Module) -> nn.Module:
        old = _module_at(model, self.path)
        fuse: Any = getattr(old, "fuse", None)
        if not callable(fuse):
            raise ValueError(f"{self.path or 'the model'} is {_named(old)}, which has no method fuse()")
        new = fuse()
        if type(new).__name__ != self.into:
            raise ValueError(f"fuse() of {self.path or 'the model'} returns {_named(new)}, where the plan has {self.into}")
        return _put(model, (self.path,), new.eval())


@dataclass(frozen=True)
class TakeOneSize(Step):
    """The model refuses inputs of another shape than this one, which does not count the batch."""

    kind = "one_size"
    shape: tuple[int, ...]

    def take(self, model: nn.Module) -> nn.Module:
        model.register_forward_pre_hook(OneSize(self.shape), with_kwargs=True)
        return model


KINDS: dict[str, type[Step]] = {
    step.kind: step for step in (FoldAway, DropAffine, DropMean, Freeze, AddBias, Fuse, OwnFuse, TakeOneSize)
}


def paths_of(model: nn.Module, module: nn.Module) -> tuple[str, ...]:
    """Every path of a module in a model."""
    return tuple(path for path, each in model.named_modules(remove_duplicate=False) if each is module)


def _module_at(model: nn.Module, *paths: str) -> nn.Module:
    found: dict[nn.Module, str] = {}
    for path in paths:
        try:
            found.setdefault(model.get_submodule(path), path)
        except AttributeError:
            raise ValueError(f"{type(model).__name__} has no module {path}") from None
    if len(found) != 1:
        raise ValueError(f"{' and '.join(found.values())} are not one module" if found else "it names no module")
    return next(iter(found))


def _put(model: nn.Module, paths: tuple[str, ...], new: nn.Module) -> nn.Module:
    for path in paths:
        if not path:
            return new  # the model itself
        model.set_submodule(path, new)
    return model


def _named(module: object) -> str:
    name = type(module).__name__
    return f"an {name}" if name[:1] in "AEIO" else f"a {name}"
