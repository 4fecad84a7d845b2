"""Layers that branches fuse into, as plain data: the name of a torch class and the arguments of its constructor."""

from typing import Any

from torch import nn

CONVOLUTION = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
LAYERS: dict[str, tuple[type[nn.Module], tuple[str, ...]]] = {
    "Linear": (nn.Linear, ("in_features", "out_features")),
    "Conv1d": (nn.Conv1d, CONVOLUTION),
    "Conv2d": (nn.Conv2d, CONVOLUTION),
    "Conv3d": (nn.Conv3d, CONVOLUTION),
    "Identity": (nn.Identity, ()),
}


def describe_layer(layer: nn.Module) -> dict[str, Any] | None:
    """The class and arguments of a layer, such as {"type": "Linear", "in_features": 4, ...}; None for any other module."""
    kind, names = LAYERS.get(type(layer).__name__, (None, ()))
    if type(layer) is not kind or layer._forward_pre_hooks or layer._forward_hooks:
        return None
    described: dict[str, Any] = {"type": kind.__name__, **{name: getattr(layer, name) for name in names}}
    return described | ({"bias": layer.bias is not None} if names else {})


def build_layer(described: dict[str, Any]) -> nn.Module:
    """The layer of a description; its weights are random."""
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in described.items()}
    name = options.pop("type", None)
    kind, names = LAYERS.get(str(name), (None, ()))
    if kind is None:
        raise ValueError(f"{name!r} is no layer that a fold plan may build; known are {', '.join(LAYERS)}")
    expected = {*names, *(("bias",) if names else ())}
    if set(options) != expected:
        wrong = sorted(set(options) ^ expected)
        raise ValueError(f"a {name} of a fold plan has the arguments {', '.join(sorted(expected))}; look at {', '.join(wrong)}")
    try:
        return kind(**options)
    except (TypeError, ValueError, RuntimeError) as error:  # whatever torch's constructors raise
        raise ValueError(f"torch cannot build a {name} of {options}: {error}") from error
