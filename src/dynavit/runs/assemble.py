"""Options -> objects: data, task and model of a run."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..tasks.table import TASKS
from .config import TrainConfig, from_plain

if TYPE_CHECKING:
    from ..common.data import Data, Loader
    from ..common.task import Task
    from ..engine.processes import Processes

AUTO = "auto"  # what is left to decide: a model by the images' size, a data set by what the directory holds


def open_training_data(config: TrainConfig, processes: "Processes | None" = None, resumed: "Path | None" = None) -> "Data":
    """The data set of a training, with images as its initial weights know them, or as in the run that is resumed."""
    from ..data.open import open_data
    from .preparation import prepared_for_training

    if processes is not None and config.loading.download:  # by one process; the others find it there
        if processes.is_main:
            open_data(config.data, config.data_dir, config.loading)
        processes.barrier()
    data = open_data(config.data, config.data_dir, config.loading)
    if "train" not in data.splits:
        raise ValueError(f"{data.name} has no training images, only {' and '.join(data.splits)}")
    return prepared_for_training(config, data, resumed)


def decided(config: TrainConfig, data: "Data") -> TrainConfig:
    """The options with the names of data set and model that were left open."""
    from ..data.recognise import data_name

    return replace(config, data=data_name(config.data, config.data_dir), model=model_name(config, data))


def model_name(config: TrainConfig, data: "Data") -> str:
    """The model that is named; otherwise the one whose weights are taken from timm, the one that the data set names, as sets
    of other things than images do, or the one that fits the images' size."""
    from ..models.fit_image import model_for

    if config.model != AUTO:
        return config.model
    source, _, name = (config.init_from or "").partition(":")
    if source == "timm":
        return name
    return getattr(data, "model", None) or model_for(getattr(data, "image_size", None))


def task_of_run(config: TrainConfig, data: "Data") -> "type[Task]":
    """The task that is named; otherwise the model's, otherwise the data's."""
    from ..models.registry import task_of

    task = TASKS[config.task or task_of(model_name(config, data)) or data.task]
    task.check_data(data)
    return task


def task_options(task: "type[Task]", given: Mapping[str, Any]) -> Any:
    """The task's own options; one that it does not have is an error with the nearest name."""
    return from_plain(task.Options, given, "task.")


def build_task(name: str, model: nn.Module, data: Any, options: Mapping[str, Any]) -> "Task":
    """The task of a stored run around its model."""
    task = TASKS[name]
    return task.build(model, data, task_options(task, options))


def build_model(config: TrainConfig, data: "Data") -> tuple[nn.Module, dict[str, Any]]:
    """A model for these data, with random weights from the seed, and the call that rebuilds it (`models.stored_call`)."""
    from ..models.stored_call import build_checked, stored_call

    call = model_call(config, data)
    stored = stored_call(call)  # before the model, since a run that cannot be loaded again is worth nothing
    torch.manual_seed(config.seed)
    return build_checked(call), stored


def training_task(config: TrainConfig, data: "Data | None" = None) -> "tuple[Task, Loader]":
    """The task of a run and the loader of its training samples, for one process: to measure what a step costs."""
    from ..common.data import LoaderOptions

    data = data if data is not None else open_training_data(config)
    model, _ = build_model(config, data)
    task = build_task(task_of_run(config, data).name, model, data, config.task_options)
    how = LoaderOptions(
        train=True, batch_size=config.batch_size, seed=config.seed, augment=config.augment, config=config.loading
    )
    return task, task.loader(data, "train", how)


def model_call(config: TrainConfig, data: "Data") -> dict[str, Any]:
    """The keyword arguments of `create_model` for a model that fits task and data."""
    from ..models.fit_image import options_for_images

    task = task_of_run(config, data)
    name = model_name(config, data)
    call: dict[str, Any] = {"name": name, "norm": config.norm, "norm_options": config.norm_options or None}
    call |= task.model_options(data, task_options(task, config.task_options))
    image_size = getattr(data, "image_size", None)
    if image_size is not None:
        call |= options_for_images(name, image_size, config.model_options)
    return {key: value for key, value in (call | config.model_options).items() if value is not None}
