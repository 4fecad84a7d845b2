"""A task's parameters and state: those of its model under the model's own names, and what the task holds beside it.

A projection head, a teacher or a running centre is part of the task and not of its model. It is trained (parameters that want
gradients), saved and resumed like the model, under names that begin with "task:".
"""

from torch import Tensor, nn

from ..common.newer_state import newer_names
from .contract import Task

MODEL_PREFIX, OWN_PREFIX = "model.", "task:"


def trained_parameters(task: Task) -> dict[str, nn.Parameter]:
    """Names to parameters that want gradients; tied ones once."""
    return {_name(name): parameter for name, parameter in task.named_parameters() if parameter.requires_grad}


def own_parameters(task: Task) -> dict[str, nn.Parameter]:
    """The trained parameters that are not the model's."""
    return {name: parameter for name, parameter in trained_parameters(task).items() if name.startswith(OWN_PREFIX)}


def own_state(task: Task) -> dict[str, Tensor]:
    """The state that is not the model's; empty for most tasks."""
    state = task.state_dict()
    return {_name(name): tensor for name, tensor in state.items() if not name.startswith(MODEL_PREFIX)}


def may_lack(task: Task) -> set[str]:
    """Names of state that checkpoints of earlier versions are without."""
    return {_name(name) for name in newer_names(task)}


def module_path(path: str) -> str:
    """A module's path in the task as it is logged: paths in the model are the model's own."""
    return "" if path == MODEL_PREFIX[:-1] else _name(path) if path else OWN_PREFIX


def _name(name: str) -> str:
    return name.removeprefix(MODEL_PREFIX) if name.startswith(MODEL_PREFIX) else OWN_PREFIX + name
