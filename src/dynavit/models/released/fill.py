"""Numbers of a released state dict into our model.

We go through the parameters of our model and ask for each which key of the release holds it. A key that no parameter asks for
is dropped if we know it to be without effect; else it is an error.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...common.newer_state import newer_names
from ...norms.statistics.smoothed import SmoothedNorm
from ..cascade.upsample import Upsample
from ..sound_weights import check_sound
from .family import State
from .norms import Transform, as_is, key_below

# Without effect: a bias that cancels in the softmax over positions; a counter nobody reads.
_DROPPED = re.compile(r".*\.norm\d?\.(pos_proj\.bias|bn\.num_batches_tracked)")


def fill(
    model: nn.Module, state: State, report: dict[str, Any], key: Callable[[str], str], transforms: Mapping[str, Transform]
) -> nn.Module:
    """Give a model without memory the release's numbers, and its `import_report`.

    Args:
        report: what is known so far, `arch` and `norm` among it.
        key, transforms: see `Family`.
    """
    values, renamed, dropped = _translate(model, state, report, key, transforms)
    dtype = torch.promote_types(next(v.dtype for v in values.values() if v.is_floating_point()), torch.float32)
    model = model.to(dtype).to_empty(device="cpu")
    for module in model.modules():
        if isinstance(module, (Upsample, SmoothedNorm)):  # some of their numbers are no part of a checkpoint
            module.reset_parameters()
    model.load_state_dict(values, strict=True)
    model.import_report = {**report, "dropped": dropped, "renamed": renamed}  # type: ignore[assignment]
    return model.eval()


def _translate(
    model: nn.Module, state: State, report: dict[str, Any], key: Callable[[str], str], transforms: Mapping[str, Transform]
) -> tuple[State, dict[str, str], list[str]]:
    """Our state dict filled from theirs; their names -> ours where they differ; their keys without effect."""
    values: State = {}
    renamed: dict[str, str] = {}
    wrong, missing = [], []
    used: dict[str, Tensor] = {}  # their names -> our tensors
    newer = newer_names(model)
    for ours, wanted in model.state_dict().items():
        path, _, name = ours.rpartition(".")
        name, transform = key_below(model.get_submodule(path), name) or (name, as_is)
        theirs, transform = key(f"{path}.{name}" if path else name), transforms.get(ours, transform)
        if theirs not in state:
            if ours not in newer:
                missing.append(theirs)
            continue
        used[theirs] = wanted
        value = transform(state[theirs])
        if value.shape != wanted.shape:
            wrong.append(f"{theirs} is {tuple(state[theirs].shape)}, for {ours} {tuple(wanted.shape)}")
            continue
        values[ours] = value
        if theirs != ours:
            renamed[theirs] = ours
    rest = [name for name in state if name not in used]
    dropped = [name for name in rest if _DROPPED.fullmatch(name) or (name == "cls_token" and "cls_token" not in values)]
    unknown = [name for name in rest if name not in dropped]
    if wrong or missing or unknown:
        problems = {"missing": missing, "unknown": unknown, "of another shape": wrong}
        text = "; ".join(f"{len(names)} {what}: {', '.join(names)}" for what, names in problems.items() if names)
        raise ValueError(f"the state dict is not one of {report['arch']} with norm {report['norm']!r}. Keys {text}")
    check_sound("the state dict", ((name, state[name], wanted) for name, wanted in used.items()))
    return values, renamed, dropped
