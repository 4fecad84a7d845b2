"""The size of a model before it is built: numbers in a file or an option may ask for more than there is."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ..common.fits import Range, check_fits
from ..common.memory import free_bytes
from .registry import MODELS, SWAP_OPTIONS, create_model

LARGEST = Range(least=-(2**24), most=2**24)  # of any number among the options of a model
BLOCKS = Range(least=0, most=1000)  # the depth: even blocks without memory take their time
BLOCK_WORDS = ("depth", "blocks", "layers")  # in names of options that count them


def check_size(call: Mapping[str, Any]) -> None:
    """ValueError if the model of this call of `create_model` would not fit into memory, or have thousands of blocks."""
    for name, number in _numbers(call):
        counted = any(word in name for word in BLOCK_WORDS)
        check_fits(float, number, name)
        if number not in (BLOCKS if counted else LARGEST):
            raise ValueError(f"{name}={number}: a number {BLOCKS if counted else LARGEST}")
    if MODELS.guest(call["name"]) is not None:
        return  # a function of the user's own may not know what to do without memory
    # Replacing norms needs a model that runs; they are the smallest part of it.
    left_out = () if call["name"] in MODELS else SWAP_OPTIONS
    try:
        with torch.device("meta"):
            model = create_model(**{name: value for name, value in call.items() if name not in left_out})
    except Exception as error:  # building it in earnest tells
        if "overflow" not in str(error):
            return
        raise ValueError(f"the model {call['name']} would have more numbers than can be counted") from error
    needed, free = model_bytes(model), free_bytes()
    if free is not None and needed > free:
        raise ValueError(
            f"the weights of {call['name']} alone would take {needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free; look "
            f"at {', '.join(name for name, _ in _numbers(call)) or 'its options'}"
        )


def model_bytes(model: nn.Module) -> int:
    """Of all parameters and buffers."""
    return sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number among the options with the names that lead to it."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(item, f"{name}.{key}".strip("."))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value
