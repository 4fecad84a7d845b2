"""Names to models: ours, those of a user's own file, and timm's.

    @register_model
    def vit_small_star(**kwargs: Any) -> VisionTransformer:
        \"\"\"ViT-S* of the paper.\"\"\"
        return VisionTransformer(**{"embed_dim": 432, "heads": 9, **kwargs})

The function's name is the model's name, the first line of its docstring describes it. Its options are the parameters it names;
if it takes `**kwargs`, also those of the class in its return annotation.
"""

import fnmatch
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, get_type_hints, overload

from torch import nn

from ..common.registry import PACKAGE, Registry, nearest_match_error
from ..common.torchvision_shim import ensure_torchvision
from ..norms.factory import folds

Entry = Callable[..., nn.Module]

MODELS: Registry[Entry] = Registry("model", entry_points="dynavit.models")

_TIMM_NAMES: dict[str, str] = {}  # name -> one line about it

# Arguments that timm.create_model adds to every call; none concerns a model without published weights.
_FROM_TIMM = ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")
_SOURCES = ("hf-hub:", "hf_hub:", "local-dir:")  # timm's prefixes for models from elsewhere
SWAP_OPTIONS = ("norm", "norm_options", "where")


@overload
def register_model(function: Entry, /) -> Entry: ...
@overload
def register_model(*, task: str | None = None) -> Callable[[Entry], Entry]: ...
def register_model(function: Entry | None = None, /, *, task: str | None = None) -> Entry | Callable[[Entry], Entry]:
    """Put a function that builds a model into our table and into timm's registry: `@register_model`, in anybody's file.

    timm keeps a name it already has (its `test_vit`); `dynavit.create_model` then gives ours, `timm.create_model` timm's.
    A function from outside the package cannot take a name of timm.

    Where the norms go is the function's business if `norm` is among its options. Otherwise `create_model(name, norm="dtn")`
    replaces the norms of the model it returns, by `swap_norms`.

    Args:
        task: the task the model is trained by unless the user says otherwise.
    """
    return functools.partial(_register, task=task) if function is None else _register(function, task)


def _register(function: Entry, task: str | None) -> Entry:
    if not inspect.isfunction(function):
        raise ValueError(f"register_model stands above a function, whose name is the model's; got {function!r}")
    name = function.__name__
    build = _follow_conventions(name, function, task)
    timms = _timms(name)
    if timms is not None and function.__module__.partition(".")[0] != PACKAGE:
        raise ValueError(f"the model {name!r} is one of timm ({timms.__module__}); choose another name")
    MODELS.register(name)(build)
    if timms is None:
        _register_with_timm(build)
    return build


def _follow_conventions(name: str, function: Entry, task: str | None) -> Entry:
    """The function with its options checked, timm's arguments understood, and norms swapped where it has no option `norm`."""

    @functools.wraps(function)
    def build(*, pretrained: bool = False, features_only: bool = False, out_indices: Any = None, **options: Any) -> nn.Module:
        names, others = _options(function)
        if "pretrained" in names:
            options["pretrained"] = pretrained
        elif pretrained:
            raise ValueError(
                f"{name}: no weights are published for this model, so pretrained=True cannot be honoured; build it without, "
                "or bring a release's own checkpoint in with dynavit.load_released"
            )
        options = {option: value for option, value in options.items() if option in names or option not in _FROM_TIMM}
        swap = {} if "norm" in names else {option: options.pop(option) for option in SWAP_OPTIONS if option in options}
        for option in options:
            if option not in names and not others:
                raise nearest_match_error(f"option of model {name!r}", option, names)
        model = function(**options)
        if not isinstance(model, nn.Module):
            raise ValueError(f"the model {name!r}: its function returned {type(model).__name__}, not a torch.nn.Module")
        norm = options.get("norm")
        if swap:
            model = _swapped(name, model, trained=pretrained, input_size=options.get("img_size"), **swap)
        elif norm is not None and folds(norm) and not {"norm_blocks", "norm_sites"} & options.keys():
            from .layers import norm_everywhere  # imports timm

            norm_everywhere(model, norm, options.get("norm_options"))
        for attribute in ("default_cfg", "pretrained_cfg"):
            if isinstance(cfg := getattr(model, attribute, None), dict):
                cfg.setdefault("architecture", name)
        return _feature_extractor(name, model, out_indices) if features_only else model

    build.task = task  # type: ignore[attr-defined]
    return build


def register_timm_names(names: dict[str, str]) -> None:
    """Show models of timm in `list_models`; any other timm name works too, unlisted."""
    _TIMM_NAMES.update(names)


def create_model(
    name: str, norm: str | None = None, *, norm_options: dict[str, Any] | None = None, where: Any = None, **options: Any
) -> nn.Module:
    """Build a model by its name: one of ours, one that was registered, or any model of timm.

    Args:
        name: see `list_models`; a timm name may carry timm's tag.
        norm: a name of `list_norms`. None leaves what the model comes with (ours: LayerNorm). A norm that folds away at
            evaluation takes every place, others those of blocks. In a model of timm, or a registered one without the option
            `norm`, norms are replaced by `swap_norms`: by fresh ones, or near the trained ones if `pretrained=True` is among
            the options.
        norm_options: options of that norm.
        where: which norms `swap_norms` replaces. Our models say it with `norm_blocks` and the like.
        options: what the model takes: num_classes, img_size, drop_path_rate, ...
    """
    given = {"norm": norm, "norm_options": norm_options, "where": where}
    asked = {key: value for key, value in given.items() if value is not None}
    model = _entry(name)(**asked, **options) if name in MODELS else _of_timm(name, asked, options)
    model.created_by = {"name": name, **asked, **options}  # type: ignore[assignment] # for `save_pretrained`
    return model


def _of_timm(name: str, swap: dict[str, Any], options: dict[str, Any]) -> nn.Module:
    """A model of timm, with its norms replaced if any of `SWAP_OPTIONS` is given."""
    ensure_torchvision()
    import timm

    if not name.startswith(_SOURCES):
        timm_entry(name)
    model: nn.Module = timm.create_model(name, **options)
    return _swapped(name, model, **swap, trained=bool(options.get("pretrained"))) if swap else model


def list_models(pattern: str = "*") -> list[str]:
    """Names that `create_model` takes, in alphabetical order: our models, registered ones, and models of timm that are tested
    with our norms.

    >>> list_models("vit_*_star")
    ['vit_base_star', 'vit_small_star', 'vit_tiny_star']
    """
    return sorted(fnmatch.filter({*MODELS, *_TIMM_NAMES}, pattern))


def describe_model(name: str) -> str:
    """One line about a listed model."""
    if name in _TIMM_NAMES:
        return _TIMM_NAMES[name]
    if name not in MODELS:
        raise nearest_match_error("model", name, list_models())
    return (inspect.getdoc(MODELS[name]) or "").partition("\n")[0]


def task_of(name: str) -> str | None:
    """The task a model declares to be trained by; None if it declares none, as models of timm do.

    >>> task_of("dvt_vit_micro")
    'early_exit'
    """
    return getattr(MODELS[name], "task", None) if name in MODELS else None


def home_of(name: str) -> str:
    """Where a model comes from: "dynavit", "timm", or the file of a registered one ("" in an interactive session)."""
    if name not in MODELS:
        return "timm"
    MODELS[name]  # an installed package is imported now
    guest = MODELS.guest(name)
    return "dynavit" if guest is None else guest.file


def _entry(name: str) -> Entry:
    entry = MODELS[name]
    # An installed package may offer the function itself, without the decorator.
    return entry if hasattr(entry, "task") else _follow_conventions(name, entry, None)


def _swapped(
    name: str,
    model: nn.Module,
    norm: str | None = None,
    norm_options: dict[str, Any] | None = None,
    where: Any = None,
    *,
    trained: bool,
    input_size: Any = None,
) -> nn.Module:
    """A model that has no option `norm`, with its norms replaced."""
    if norm is None:
        raise ValueError(
            f"{name}: norm_options={norm_options} and where={where} were given without a norm they could belong to"
        )
    from ..convert import swap_norms

    start = None if trained else "fresh"  # None: as near to the trained norms as the new one can be
    return swap_norms(model, norm, where=where, start=start, norm_options=norm_options, inplace=True, input_size=input_size)


def _options(function: Entry) -> tuple[set[str], bool]:
    """The options a function takes, and whether it takes any others. With `**kwargs`: also those of the class it returns."""
    names, others = _parameters(function)
    if not others:
        return names, others
    try:
        made = get_type_hints(function).get("return")
    except NameError:  # an annotation for type checkers only
        made = None
    if not inspect.isclass(made):
        return names, others
    names |= set(getattr(made, "flat_options", ()))
    for base in made.__mro__:  # a class with **kwargs hands them to the class it is made from
        if "__init__" in vars(base) and others:
            own, others = _parameters(vars(base)["__init__"])
            names |= own - {"self"}
    return names, others


def _parameters(function: Callable[..., Any]) -> tuple[set[str], bool]:
    parameters = inspect.signature(function).parameters.values()
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {one.name for one in parameters if one.kind not in several}, any(one.kind is one.VAR_KEYWORD for one in parameters)


def _feature_extractor(name: str, model: nn.Module, out_indices: Any) -> nn.Module:
    """timm's wrapper that returns a list of (b, c, rows, cols) feature maps; the last four, if nothing else is asked for."""
    from timm.models._features import FeatureGetterNet

    if not hasattr(model, "feature_info") or not hasattr(model, "forward_intermediates"):
        raise ValueError(f"{name}: it has no feature maps (feature_info, forward_intermediates) for features_only=True")
    if out_indices is None:
        out_indices = min(4, len(model.feature_info))  # type: ignore[arg-type]
    features = FeatureGetterNet(model, out_indices=out_indices)
    features.default_cfg = features.pretrained_cfg = model.pretrained_cfg
    return features


def timm_entry(name: str) -> Entry:
    """timm's function of this name; a name it does not know is an error that names the nearest."""
    ensure_torchvision()
    import timm

    if not timm.is_model(name):
        raise nearest_match_error("model", name, [*list_models(), *_closest(name, timm.list_models())])
    return timm.models.model_entrypoint(name)


def _timms(name: str) -> Entry | None:
    """timm's own function of this name; None if there is none, or one that we put there."""
    ensure_torchvision()
    import timm

    if not timm.is_model(name):
        return None
    known: Entry = timm.models.model_entrypoint(name)
    return None if hasattr(known, "task") else known


def _register_with_timm(build: Entry) -> None:
    from timm.models import register_model as register

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a notebook cell that runs twice
        register(build)


def _closest(name: str, names: list[str]) -> list[str]:
    import difflib

    return difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.6)
