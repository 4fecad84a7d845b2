"""`dynavit list`: what there is to choose from."""

import inspect
import json as json_format
from dataclasses import asdict, dataclass
from typing import Any

from .show import print_entries, print_table

DIM, HEADS = 192, 4  # the size at which parameters are counted: one block of a tiny vision transformer


@dataclass(frozen=True)
class NormRow:
    name: str
    description: str
    options: dict[str, Any]  # its own, with their defaults; the shared ones are the same for every norm
    parameters: int


def list_norms(json: bool = False) -> None:
    """List every normaliser, what it is, its own options and its size.

    Every normaliser also takes heads, eps, affine, device and dtype. In Python:
    `dynavit.create_norm(name, dim, heads=..., option=...)`.

    Args:
        json: print JSON instead of a table.
    """
    rows = norm_rows()
    if json:
        print(json_format.dumps([asdict(row) for row in rows], indent=2, default=str))
        return
    print_table(
        f"Normalisers (parameters counted at C={DIM}, H={HEADS})",
        ["name", "what it is", "own options", "parameters"],
        [[row.name, row.description, _spelled(row.options), f"{row.parameters:,}"] for row in rows],
    )


def norm_rows() -> list[NormRow]:
    """The rows of the table as data."""
    from ..norms import Norm, create_norm
    from ..norms import list_norms as names
    from ..norms.factory import norm_class_of, options_of

    shared = inspect.signature(Norm).parameters
    rows = []
    for name in names():
        norm_class = norm_class_of(name)
        own = {option: parameter.default for option, parameter in options_of(norm_class).items() if option not in shared}
        size = sum(parameter.numel() for parameter in create_norm(name, DIM, heads=HEADS).parameters())
        rows.append(NormRow(name, inspect.cleandoc(norm_class.__doc__ or "").partition("\n")[0], own, size))
    return rows


@dataclass(frozen=True)
class ModelRow:
    name: str
    description: str
    home: str  # "dynavit" or "timm"
    parameters: int  # with the model's own norms, and as many classes as it has by default


def list_models(pattern: str = "*", json: bool = False) -> None:
    """List our models and those of timm that are tested with our norms. Every other name of timm can be used too.

    In Python: `dynavit.create_model(name, norm="dtn", num_classes=..., ...)`.

    Args:
        pattern: only names that match, for example "vit_*_star".
        json: print JSON instead of a table.
    """
    rows = model_rows(pattern)
    if json:
        print(json_format.dumps([asdict(row) for row in rows], indent=2))
        return
    print_table(
        "Models (parameters with their own norms and classes)",
        ["name", "what it is", "from", "parameters"],
        [[row.name, row.description, row.home, f"{row.parameters:,}"] for row in rows],
    )


def model_rows(pattern: str = "*") -> list[ModelRow]:
    """The rows of the table as data."""
    import torch

    from ..models import create_model
    from ..models import list_models as names
    from ..models.registry import describe_model, home_of

    rows = []
    for name in names(pattern):
        with torch.device("meta"):  # shapes without memory or initialisation
            size = sum(parameter.numel() for parameter in create_model(name).parameters())
        rows.append(ModelRow(name, describe_model(name), home_of(name), size))
    return rows


def list_tasks(json: bool = False) -> None:
    """List the tasks: what a model is trained for, how it is judged, and the task's own options.

    The task follows from model and data unless --task names another; its options are written --task.NAME. In Python:
    `TrainConfig(task=..., task_options={...})`.

    Args:
        json: print JSON instead of a table.
    """
    from ..tasks.table import TASKS
    from .parse import attribute_docs

    rows = []
    for name in TASKS:
        task = TASKS[name]
        main = task.metrics[0] if task.metrics else None
        judged = f"{main.label}, {main.better} is better" if main else "loss"
        about = (inspect.getdoc(task) or "").partition("\n")[0]
        rows.append({"name": name, "description": about, "judged by": judged, "options": attribute_docs(task.Options)})
    if json:
        print(json_format.dumps(rows, indent=2))
        return
    columns = ("name", "description", "judged by")
    shown = [
        [*(str(row[column]) for column in columns), ", ".join(f"--task.{option}" for option in row["options"]) or "-"]
        for row in rows
    ]
    print_table("Tasks", ["name", "what it is", "judged by", "own options"], shown)


def list_data(json: bool = False) -> None:
    """List the data sets that can be opened by name.

    Besides these, names of timm's readers work: hfds/..., wds/..., torch/.... In Python: `dynavit.data.open.open_data`.

    Args:
        json: print JSON instead of a table.
    """
    from ..data.open import list_data

    rows = [{"name": name, "description": about} for name, about in list_data().items()]
    if json:
        print(json_format.dumps(rows, indent=2))
        return
    print_table("Data sets", ["name", "what it is"], [list(row.values()) for row in rows])


def list_recipes(json: bool = False) -> None:
    """List the recipes: options for --config that belong together, what they cost and the number they reached.

    A recipe is a start: `dynavit train --config cifar10 --norm dtn --epochs 5` changes two of its options, and
    `dynavit train --config cifar10 --print_config` shows them all.

    Args:
        json: print JSON instead.
    """
    from .recipes import list_recipes

    rows = [asdict(recipe) for recipe in list_recipes()]
    if json:
        print(json_format.dumps(rows, indent=2, ensure_ascii=False))
        return
    about = [[row["what"], f"cost: {row['cost']}", f"reached: {row['reached']}"] for row in rows]
    print_entries([(row["name"], lines, row["command"]) for row, lines in zip(rows, about, strict=True)])


def _spelled(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items()) or "-"
