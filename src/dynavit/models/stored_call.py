"""The call of `create_model` that a run stores, and the model built from it.

A run's files may come from anybody, and its weights come with it. So a stored call holds a name and options of its model, and
nothing that would fetch weights or open another file: neither is asked for by loading a run.
"""

import inspect
import sys
from collections.abc import Mapping
from typing import Any

from torch import nn

from ..common.registry import nearest_match_error
from .registry import MODELS, SWAP_OPTIONS, create_model, timm_entry
from .size import check_size

# Arguments of timm that say where weights come from. A run has its own, so it stores none of these and reads none.
WEIGHT_SOURCES = {
    "pretrained",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
    "pretrained_strict",
    "pretrained_filter_fn",
    "checkpoint_path",
    "cache_dir",
}
# Options that timm takes for every model, whatever its class.
EVERY_TIMM_MODEL = {"num_classes", "in_chans", "img_size", "drop_rate", "drop_path_rate", "global_pool"}
EVERY_TIMM_MODEL |= {"features_only", "out_indices", "scriptable", "exportable", "no_jit"}


def stored_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """The call without arguments that say where weights come from. ValueError for a name or an option that is no model's.

    >>> stored_call({"name": "vit_micro", "norm": "dtn", "depth": 2, "pretrained": True})
    {'name': 'vit_micro', 'norm': 'dtn', 'depth': 2}
    """
    name = call.get("name")
    if not isinstance(name, str):
        raise ValueError(f"the model's name is a text, got {name!r}")
    kept = {option: value for option, value in call.items() if option not in WEIGHT_SOURCES}
    if name not in MODELS:  # those know their options
        known = _options_of_timm(name) | {"name", *SWAP_OPTIONS}
        for option in kept:
            if option not in known:
                raise nearest_match_error(f"option of model {name!r}", option, known)
    return kept


def build_stored(call: Mapping[str, Any]) -> nn.Module:
    """The model of a stored call, with fresh weights. ValueError if these options make no model, or one that is too large."""
    return build_checked(stored_call(call))


def build_checked(call: Mapping[str, Any]) -> nn.Module:
    """The model of a call whose options were not checked, for instance those of a file: any failure is a ValueError."""
    check_size(stored_call(call))
    try:
        return create_model(**call)
    except ValueError:
        raise
    except Exception as error:  # a text for a number, a list for a text: constructors stumble in any way
        if MODELS.guest(call["name"]) is not None:
            raise  # somebody is writing that function, and wants to see where it failed
        reason = " ".join(str(error).split()) or "no reason given"
        raise ValueError(
            f"the model {call['name']} cannot be built with these options ({type(error).__name__}: {reason})"
        ) from error


def _options_of_timm(name: str) -> set[str]:
    """Parameters of the classes in the model's own file of timm."""
    if ":" in name or "/" in name:
        raise ValueError(
            f"the model {name!r} would have to be looked up elsewhere each time its run is loaded; name its architecture, and "
            f"take weights from there with --init-from timm:{name}"
        )
    file = sys.modules[timm_entry(name).__module__]
    classes = [thing for thing in vars(file).values() if inspect.isclass(thing) and thing.__module__.startswith("timm.")]
    names = {option for each in classes for option in inspect.signature(each).parameters}
    return (names | EVERY_TIMM_MODEL) - {"args", "kwargs"}
