"""Names to tasks. Nothing here imports torch: a task is imported when its name is asked for."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ..common.registry import Registry
from .options import DetectionOptions, DinoOptions, DistilledExitsOptions, EarlyExitOptions

if TYPE_CHECKING:
    from ..common.task import Task

T = TypeVar("T", bound="type[Task]")

TASKS: "Registry[type[Task]]" = Registry(
    "task",
    entry_points="dynavit.tasks",
    built_in={
        "classification": "dynavit.tasks.classification:Classification",
        "detection": "dynavit.tasks.detection.task:Detection",
        "dino": "dynavit.tasks.dino:Dino",
        "distilled_exits": "dynavit.tasks.distilled_exits:DistilledExits",
        "early_exit": "dynavit.tasks.early_exit:EarlyExit",
        "listops": "dynavit.tasks.listops:ListOps",
    },
)
_BUILT_IN_OPTIONS: dict[str, type] = {
    "detection": DetectionOptions,
    "dino": DinoOptions,
    "distilled_exits": DistilledExitsOptions,
    "early_exit": EarlyExitOptions,
}


def register_task(name: str) -> Callable[[T], T]:
    """Register a `Task` under a name: `--task NAME`.

        @dynavit.register_task("rotation")
        class Rotation(dynavit.Task): ...

    `Task` says what such a class has.
    """

    def check(task: T) -> T:
        from ..common.task import Task

        if not inspect.isclass(task) or not issubclass(task, Task):
            raise ValueError(f"register_task({name!r}): a task is a subclass of dynavit.Task, got {task!r}")
        if not dataclasses.is_dataclass(task.Options):
            raise ValueError(f"register_task({name!r}): {task.__name__}.Options is a dataclass, got {task.Options!r}")
        registered = TASKS.register(name)(task)
        task.name = name
        return registered

    return check


def list_tasks() -> list[str]:
    """Names that `--task` takes, in alphabetical order."""
    return TASKS.names()


def options_of_tasks() -> dict[str, Any]:
    """Option classes by task, of those that have any; for help texts, without importing what is ours."""
    guests = {name: TASKS[name].Options for name in TASKS if TASKS.guest(name) is not None}
    return _BUILT_IN_OPTIONS | {name: kind for name, kind in guests.items() if dataclasses.fields(kind)}
