"""Swapped models as files: weights and plans in one `model.safetensors`, which no library's own loader understands whole.

A state dict does not say how its model was built. A library that builds its own architecture again gets its own norms,
takes weight and bias for them and drops the rest. So the plans travel in the header of the weights' file, as JSON, with a
checksum of the tensors; and one file is replaced in one step, whatever else lies in the folder.
"""

import copy
import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ..common.files import replacing
from ..common.plugins import require_guests
from ..norms.factory import NORMS
from .plan import SwapPlan
from .swap import apply_plan

FILE = "model.safetensors"
HEADER = "dynavit_swap"  # the entry of the file's metadata that holds the JSON
FORMAT = "dynavit swapped model 1"


def save_swapped(model: nn.Module, folder: str | PathLike[str], *, overwrite: bool = False) -> Path:
    """Write the weights and the plan of a swapped model to `folder/model.safetensors`; `load_swapped` reads it.

    Args:
        model: what `swap_norms` returned, or a model with such a part; of any library, also compiled or in DDP.
        folder: is made if it is missing. Other files in it are left alone.
        overwrite: replace a `model.safetensors` that is there.
    """
    model = _bare(model)
    plans = {path: plan for path, module in model.named_modules() if isinstance(plan := _plan_of(module), SwapPlan)}
    if not plans:
        raise ValueError(
            f"{type(model).__name__} has no swap plan, so there is nothing that its own library could not save; "
            "dynavit.swap_norms makes one"
        )
    file = Path(folder) / FILE
    if file.exists() and not overwrite:
        raise ValueError(f"{file} exists; choose another folder, or pass overwrite=True to replace it")
    state = _separate(model.state_dict())
    names = {each.norm for plan in plans.values() for each in _with_earlier(plan)}
    header = {
        "format": FORMAT,
        "sha256": _digest(state),
        "plans": {path: plan.to_dict() for path, plan in plans.items()},
        "guests": [guest._asdict() for guest in map(NORMS.guest, sorted(names)) if guest is not None],
    }
    with replacing(file) as temporary:
        save_file(state, temporary, metadata={"format": "pt", HEADER: json.dumps(header, allow_nan=False)})
    return file


def load_swapped(folder: str | PathLike[str], model: nn.Module, *, inplace: bool = False) -> nn.Module:
    """The model that `save_swapped` wrote, in evaluation mode, with the very same weights.

    Args:
        folder: where it was written, or the file itself.
        model: built as it was before the swap, by its own library; its weights do not matter. A copy is changed and
            returned, unless `inplace`.
    """
    file = Path(folder) / FILE if Path(folder).is_dir() else Path(folder)
    header, state = _read(file)
    for note in require_guests(header["guests"], file):
        warnings.warn(note, stacklevel=2)
    changed = _bare(model)
    changed = changed if inplace else copy.deepcopy(changed)
    try:
        for path in sorted(header["plans"], key=len, reverse=True):  # parts before the whole
            apply_stored_plan(changed.get_submodule(path), header["plans"][path])
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{file} holds the plan of another model than this {type(changed).__name__}: {error}") from error
    _fill(changed, state, file)
    return changed.eval()


def apply_stored_plan(model: nn.Module, plan: Any) -> None:
    """Carry out the plan of a file, in place; ValueError for one that is damaged or another model's."""
    try:
        apply_plan(model, SwapPlan.from_json(plan))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"the stored swap of norms does not fit this {type(model).__name__}: {error}") from error


def _read(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(header, tensors), compared with each other."""
    if not file.is_file():
        raise ValueError(f"{file} does not exist; dynavit.save_swapped writes it")
    try:
        with safe_open(file, "pt") as stored:
            text = (stored.metadata() or {}).get(HEADER)
            state = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118  (it cannot be iterated)
    except SafetensorError as error:
        raise ValueError(f"{file} is truncated or no safetensors file: {error}") from error
    if text is None:
        raise ValueError(
            f"{file} has no swap plan in its header, so dynavit.save_swapped did not write it. If it is the state dict of a "
            "swapped model, swap a fresh model with the same options and load it there"
        )
    try:
        header = json.loads(text)
        if header["format"] != FORMAT:
            raise ValueError(f"it is {header['format']!r}, this version reads {FORMAT!r}")
        digest, _, _ = header["sha256"], dict(header["plans"]), list(header["guests"])
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{file}: its header is damaged, or of another version: {error}") from error
    if _digest(state) != digest:
        raise ValueError(f"{file} is damaged: its tensors are not those that were saved (SHA-256)")
    return header, state


@torch.no_grad()
def _fill(model: nn.Module, state: Mapping[str, Tensor], file: Path) -> None:
    """Load tensors that have to be exactly those of the model, in the precision they were saved in."""
    own = model.state_dict(keep_vars=True)
    wrong = [f"{name} is missing" for name in own if name not in state]
    wrong += [f"{name} has no place" for name in state if name not in own]
    wrong += [
        f"{name} is {tuple(state[name].shape)}, the model has {tuple(mine.shape)}"
        for name, mine in own.items()
        if name in state and mine.shape != state[name].shape
    ]
    if wrong:
        more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""
        raise ValueError(
            f"{file} does not fit this {type(model).__name__}: {'; '.join(wrong[:4])}{more}. "
            "Build it with the options it had before the swap"
        )
    if any(mine.is_meta for mine in own.values()):
        raise ValueError(f"{type(model).__name__} is on the meta device, without memory for {file}; build it on a real device")
    for name, mine in own.items():
        if mine.dtype != state[name].dtype:
            mine.data = mine.data.to(state[name].dtype)  # in place, so that tied weights stay tied
    model.load_state_dict(state)


def _bare(model: nn.Module) -> nn.Module:
    """The model inside what torch.compile and DistributedDataParallel put around it."""
    while isinstance(inner := getattr(model, "_orig_mod", None), nn.Module) or (
        isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel) and (inner := model.module)
    ):
        model = inner
    return model


def _plan_of(module: nn.Module) -> Any:
    return vars(module).get("swap_plan")


def _with_earlier(plan: SwapPlan) -> Iterable[SwapPlan]:
    yield plan
    if plan.earlier is not None:
        yield from _with_earlier(plan.earlier)


def _separate(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Tensors with memory of their own, on the CPU: safetensors knows no tied weights."""
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{name} is a {type(value).__name__}; a file of tensors cannot keep it")
    return {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}


def _digest(state: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and bytes."""
    total = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name]
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
