"""Names to models, ours and timm's.

    @register_model
    def vit_small_star(**kwargs: Any) -> VisionTransformer:
        \"\"\"ViT-S* of the paper.\"\"\"
        return VisionTransformer(**{"embed_dim": 432, "heads": 9, **kwargs})

The function's name is the model's name. Its return annotation is the class whose options may be given.
"""

import fnmatch
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, get_type_hints

from torch import nn

from ..common.registry import nearest_match_error
from ..common.torchvision_shim import ensure_torchvision
from ..norms.factory import folds

Entry = Callable[..., nn.Module]

_MODELS: dict[str, Entry] = {}
_TIMM_NAMES: dict[str, str] = {}  # name -> one line about it

# What timm.create_model adds to every call; nothing of it concerns a model without published weights.
_FROM_TIMM = ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")
_SOURCES = ("hf-hub:", "hf_hub:", "local-dir:")  # timm's prefixes for models from elsewhere


def register_model(function: Entry) -> Entry:
    """Put a function that builds a model into our table and into timm's registry.

    timm keeps a name it already has (its `test_vit`); `dynavit.create_model` then gives ours, `timm.create_model` timm's.
    """
    name = function.__name__
    if name in _MODELS:
        raise ValueError(f"the model {name!r} is registered already, by {_MODELS[name].__module__}")

    @functools.wraps(function)
    def build(*, pretrained: bool = False, features_only: bool = False, out_indices: Any = None, **options: Any) -> nn.Module:
        if pretrained:
            raise ValueError(
                f"{name}: no weights are published for this model, so pretrained=True cannot be honoured; build it without, "
                "or bring a release's own checkpoint in with dynavit.load_released"
            )
        options = {option: value for option, value in options.items() if option not in _FROM_TIMM}
        _check_options(name, function, options)
        model = function(**options)
        norm = options.get("norm")
        if norm is not None and folds(norm) and not {"norm_blocks", "norm_sites"} & options.keys():
            from .layers import norm_everywhere  # imports timm

            norm_everywhere(model, norm, options.get("norm_options"))
        for attribute in ("default_cfg", "pretrained_cfg"):
            if isinstance(cfg := getattr(model, attribute, None), dict):
                cfg["architecture"] = name
        return _feature_extractor(model, out_indices) if features_only else model

    _MODELS[name] = build
    _register_with_timm(name, build)
    return build


def register_timm_names(names: dict[str, str]) -> None:
    """Show models of timm in `list_models`; any other timm name works too, unlisted."""
    _TIMM_NAMES.update(names)


def create_model(
    name: str, norm: str | None = None, *, norm_options: dict[str, Any] | None = None, where: Any = None, **options: Any
) -> nn.Module:
    """Build a model by its name: one of ours, or any model of timm.

    Args:
        name: see `list_models`; a timm name may carry timm's tag.
        norm: a name of `list_norms`. None leaves what the model comes with (ours: LayerNorm). A norm that folds away at
            evaluation takes every place, others those of blocks. In a timm model the norms are
            replaced by `swap_norms`: by fresh ones, or near the trained ones if `pretrained=True` is among the options.
        norm_options: options of that norm.
        where: which norms of a timm model, as in `swap_norms`. Our models say it with `norm_blocks` and the like.
        options: what the model takes: num_classes, img_size, drop_path_rate, ...
    """
    if name in _MODELS:
        given = {"norm": norm, "norm_options": norm_options, "where": where}
        return _MODELS[name](**{key: value for key, value in given.items() if value is not None}, **options)
    ensure_torchvision()
    import timm

    if not name.startswith(_SOURCES) and not timm.is_model(name):
        close = _closest(name, timm.list_models())
        raise nearest_match_error("model", name, [*list_models(), *close])
    if norm is None and (norm_options, where) != (None, None):
        raise ValueError(
            f"{name}: norm_options={norm_options} and where={where} were given without a norm they could belong to"
        )
    model: nn.Module = timm.create_model(name, **options)
    if norm is None:
        return model
    from ..convert import swap_norms

    start = None if options.get("pretrained") else "fresh"  # None: as near to the trained norms as the new one can be
    return swap_norms(model, norm, where=where, start=start, norm_options=norm_options, inplace=True)


def list_models(pattern: str = "*") -> list[str]:
    """Names that `create_model` takes, in alphabetical order: our models, and models of timm that are tested with our norms.

    >>> list_models("vit_*_star")
    ['vit_base_star', 'vit_small_star', 'vit_tiny_star']
    """
    return sorted(fnmatch.filter({*_MODELS, *_TIMM_NAMES}, pattern))


def describe_model(name: str) -> str:
    """One line about a listed model."""
    if name in _TIMM_NAMES:
        return _TIMM_NAMES[name]
    if name not in _MODELS:
        raise nearest_match_error("model", name, list_models())
    return (inspect.getdoc(_MODELS[name]) or "").partition("\n")[0]


def is_own(name: str) -> bool:
    """Whether the model is ours (True) or timm's."""
    return name in _MODELS


def _check_options(name: str, function: Entry, options: Iterable[str]) -> None:
    model_class = get_type_hints(function).get("return")
    if not inspect.isclass(model_class):
        return
    parameters = inspect.signature(model_class).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for option in options:
        if option not in parameters:
            raise nearest_match_error(f"option of model {name!r}", option, parameters)


def _feature_extractor(model: nn.Module, out_indices: Any) -> nn.Module:
    """timm's wrapper that returns a list of (b, c, rows, cols) feature maps; the last four, if nothing else is asked for."""
    from timm.models._features import FeatureGetterNet

    if out_indices is None:
        out_indices = min(4, len(model.feature_info))  # type: ignore[arg-type]
    features = FeatureGetterNet(model, out_indices=out_indices)
    features.default_cfg = features.pretrained_cfg = model.pretrained_cfg
    return features


def _register_with_timm(name: str, build: Entry) -> None:
    ensure_torchvision()
    import timm
    from timm.models import register_model as register

    if not timm.is_model(name):
        register(build)


def _closest(name: str, names: list[str]) -> list[str]:
    import difflib

    return difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.6)
