"""The main jobs on a run directory: train it, evaluate it."""

import json
import time
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from .assemble import build_model
from .calibrate import POLICY, read_policy
from .config import TrainConfig, from_plain, to_plain
from ..data.config import DataConfig
from ..data.dataset import DataSet
from ..data.loader import make_loader
from ..data.open import open_data
from ..data.preprocess import describe_preprocessing, preprocess
from ..deploy.prepare import image_files
from ..engine.checkpoint import checkpoint_step
from ..engine.config import EngineConfig
from ..engine.evaluate import evaluate
from ..engine.loop import Summary, train
from ..engine.processes import Processes
from ..engine.progress import Silent
from .directory import RunDirectory
from .model_files import ModelCard, load
from ..models.cascade import Cascade
from ..models.exit_policy import ExitPolicy
from .subject import final_split, open_run
from .samples import sample_predictions
from ..tasks.choose import final_logits, task_for

EVAL_BATCH = 256

# Options that may differ when a run goes on: they say where and how fast, not what.
FREE_ON_RESUME = {"data_dir", "loading.workers", "loading.download", "engine.threads", "engine.device", "engine.tensorboard"}
FREE_ON_RESUME |= {"engine.compile", "engine.parallel", "engine.check_finite", "init_from"}


def train_run(
    config: TrainConfig,
    out: str | PathLike[str],
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: Silent | None = None,
    command: Sequence[str] | None = None,
) -> Summary:
    """Train a model into the directory `out`, then evaluate it on the test split, or on validation where there is none.

    An existing directory is refused, unless `resume` goes on where it stopped or `overwrite` begins again. With several
    processes (torchrun) all of them call this.
    """
    progress, out = progress or Silent(), Path(out)
    processes = Processes(config.engine)
    data = open_training_data(config, processes)
    if resume:
        _check_same_run(out, config, data)
    model, call = build_model(config, data)
    notes = list(data.notes)
    if "patch_size" in call and "patch_size" not in config.model_options:
        notes.append(f"{config.model} gets patches of {call['patch_size']} pixels to fit the images (model_options.patch_size)")
    goes_on = resume and any((out / "checkpoints").glob("[!.]*"))
    if config.init_from is not None and not goes_on:
        from .initial import initial_weights

        notes += initial_weights(model, config.init_from)
    task = task_for(model, len(data.classes), config.exit_weights)
    loaders = {
        split: make_loader(
            data,
            split,
            train=split == "train",
            batch_size=config.batch_size if split == "train" else EVAL_BATCH,
            seed=config.seed,
            augment=config.augment,
            config=config.loading,
            device=processes.device,
            dtype=processes.dtype,
            rank=processes.rank,
            world=processes.world,
            accumulate=config.optim.accumulate if split == "train" else 1,
        )
        for split in data.splits
        if split != "test"
    }
    if round(config.epochs * loaders["train"].steps) < 1:
        raise ValueError(f"{config.epochs} epochs of {loaders['train'].steps} steps leave nothing to train; raise --epochs")
    if processes.is_main:
        run = RunDirectory.create(out, resume=resume, overwrite=overwrite)
        if run.finished() is None:  # otherwise its files tell how it was trained
            run.write_config(to_plain(config))
            facts = {"device": str(processes.device), "processes": processes.world, "seed": config.seed}
            run.write_env(**facts, command=list(command or []))
            sizes = {"name": data.name} | {name: len(split) for name, split in data.splits.items()}
            ModelCard(call, data.classes, describe_preprocessing(data), sizes).write(out)
        for note in notes:
            progress.note(note)
    processes.barrier()
    run = RunDirectory(out)
    summary = train(
        task, loaders["train"], loaders.get("val"), config.plan, run, processes=processes, resume=resume, progress=progress
    )
    last = final_split(data)
    if last in data.splits and not _has_result(out / "eval" / f"{last}.json", summary.steps):
        evaluate_run(out, split=last, data=data, device=config.engine.device, progress=progress)
    processes.barrier()
    return summary


def open_training_data(config: TrainConfig, processes: Processes | None = None) -> DataSet:
    if processes is not None and config.loading.download:  # by one process; the others find it there
        if processes.is_main:
            open_data(config.data, config.data_dir, config.loading)
        processes.barrier()
    data = open_data(config.data, config.data_dir, config.loading)
    if "train" not in data.splits:
        raise ValueError(f"{data.name} has no training images, only {' and '.join(data.splits)}")
    return data


def _has_result(file: Path, steps: int) -> bool:
    """Whether this evaluation was made at the end of the training, and not when it was interrupted."""
    return file.is_file() and json.loads(file.read_text()).get("step") == steps


def _check_same_run(out: Path, config: TrainConfig, data: DataSet) -> None:
    """A run goes on only with the options it began with, and on the same images."""
    run = RunDirectory(out)
    if not run.config_file.is_file():
        return  # killed before it began, or never begun: start
    stored = from_plain(TrainConfig, run.read_config())  # with defaults for options that are younger than the run
    before, now = _flat(to_plain(stored)), _flat(to_plain(config))
    names = sorted((before.keys() | now.keys()) - FREE_ON_RESUME)
    changed = [name for name in names if before.get(name) != now.get(name)]
    if changed:
        what = ", ".join(f"{name} was {before.get(name)!r}, is {now.get(name)!r}" for name in changed[:3])
        raise ValueError(f"{out} cannot be resumed with other options: {what}; leave them out, or use another --out")
    if (out / "model.json").is_file():
        card = ModelCard.read(out)
        sizes = {name: len(split) for name, split in data.splits.items()}
        had = {name: n for name, n in card.data.items() if name != "name"}
        if card.classes != data.classes or had != sizes:
            raise ValueError(f"{out} cannot be resumed: its data had {had} images, now there are {sizes}, or classes changed")


def _flat(plain: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a.b": value}; an empty dict has no entries."""
    flat: dict[str, Any] = {}
    for name, value in plain.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


