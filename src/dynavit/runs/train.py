"""Train a model into a run directory, and evaluate it at the end."""

import json
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.data import LoaderOptions
from ..common.registry import guests_used
from ..engine.loop import Summary, train
from ..engine.processes import Processes
from ..engine.progress import Progress
from .assemble import build_model, model_of_run, open_training_data, task_of_run, task_options
from .config import TrainConfig, stored_config, to_plain
from .directory import RunDirectory
from .evaluate import EVAL_BATCH, evaluate_run
from .metrics_csv import write_metrics_csv
from .model_files import ModelCard
from .opened import final_split

if TYPE_CHECKING:
    from ..common.data import Data

# Options that may differ when a run goes on: they say where and how fast, not what.
FREE_ON_RESUME = {"data_dir", "loading.workers", "loading.download", "engine.threads", "engine.device", "engine.tensorboard"}
FREE_ON_RESUME |= {"engine.compile", "engine.parallel", "engine.check_finite", "init_from", "init_partial"}


def train_run(
    config: TrainConfig,
    out: str | PathLike[str],
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    command: Sequence[str] | None = None,
) -> Summary:
    """Train a model into the directory `out`, then evaluate it on the test split, or on validation where there is none.

    An existing directory is refused, unless `resume` goes on where it stopped or `overwrite` begins again. With several
    processes (torchrun) all of them call this.
    """
    progress, out = progress or Progress(), Path(out)
    processes = Processes(config.engine)
    with guests_used() as guests:
        data = open_training_data(config, processes, out if resume else None)
        config = replace(config, model=model_of_run(config, data))
        model, call = build_model(config, data)
        task_class = task_of_run(config, data)
        options = task_options(task_class, config.task_options)
        task = task_class.build(model, data, options)
    # Options of the task as they are understood, whichever way they were written: 1,2 or [1.0, 2.0].
    config = replace(config, task_options={name: to_plain(options)[name] for name in config.task_options})
    card = _card(call, data, task_class.name, to_plain(options), [guest._asdict() for guest in guests.values()])
    if resume:
        _check_same_run(out, config, card)
    notes = list(data.notes)
    if "patch_size" in call and "patch_size" not in config.model_options:
        notes.append(f"{config.model} gets patches of {call['patch_size']} pixels to fit the images (model_options.patch_size)")
    if config.init_from is not None and not (resume and RunDirectory(out).has_checkpoint()):
        from .initial import initial_weights

        notes += initial_weights(model, config.init_from, partial=config.init_partial)
    loaders = {
        split: task.loader(data, split, _how(config, processes, train=split == "train"))
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
            card.write(out)
        for note in notes:
            progress.note(note)
    processes.barrier()
    run = RunDirectory(out)
    summary = train(
        task, loaders["train"], loaders.get("val"), config.plan, run, processes=processes, resume=resume, progress=progress
    )
    if processes.is_main and not (summary.nothing_to_do and run.metrics_table.is_file()):
        write_metrics_csv(out)
    last = final_split(data)
    if last in data.splits and not _has_result(run.evaluation_file(last), summary.steps):
        evaluate_run(out, split=last, data=data, device=config.engine.device, progress=progress)
    processes.barrier()
    return summary


def _how(config: TrainConfig, processes: Processes, *, train: bool) -> LoaderOptions:
    return LoaderOptions(
        train=train,
        batch_size=config.batch_size if train else EVAL_BATCH,
        seed=config.seed,
        augment=config.augment,
        config=config.loading,
        device=processes.device,
        dtype=processes.dtype,
        rank=processes.rank,
        world=processes.world,
        accumulate=config.optim.accumulate if train else 1,
    )


def _card(call: dict[str, Any], data: "Data", task: str, options: dict[str, Any], guests: list[dict[str, Any]]) -> ModelCard:
    facts = data.describe()
    classes, preprocess = facts.pop("classes", []), facts.pop("preprocess", {})
    sizes = {"name": data.name} | {name: len(split) for name, split in data.splits.items()}
    return ModelCard(call, classes, preprocess, sizes, task=task, task_options=options, more=facts, guests=guests)


def _has_result(file: Path, steps: int) -> bool:
    """Whether this evaluation was made at the end of the training, and not when it was interrupted."""
    return file.is_file() and json.loads(file.read_text()).get("step") == steps


def _check_same_run(out: Path, config: TrainConfig, card: ModelCard) -> None:
    """A run goes on only with the options it began with, on the same data, with the same files of the user's own."""
    run = RunDirectory(out)
    if not run.config_file.is_file():
        return  # killed before it began, or never begun: start
    before, now = _flat(to_plain(stored_config(run))), _flat(to_plain(config))
    names = sorted((before.keys() | now.keys()) - FREE_ON_RESUME)
    changed = [name for name in names if before.get(name) != now.get(name)]
    if changed:
        what = ", ".join(f"{name} was {before.get(name)!r}, is {now.get(name)!r}" for name in changed[:3])
        raise ValueError(f"{out} cannot be resumed with other options: {what}; leave them out, or use another --out")
    if not run.card_file.is_file():
        return
    stored = ModelCard.read(out)
    if stored.classes != card.classes or stored.data != card.data:
        had, has = ({name: n for name, n in each.data.items() if name != "name"} for each in (stored, card))
        raise ValueError(f"{out} cannot be resumed: its data had {had} images, now there are {has}, or classes changed")
    files = {(guest["kind"], guest["name"]): guest for guest in card.guests}
    for guest in stored.guests:
        now_there = files.get((guest["kind"], guest["name"]))
        if now_there is not None and now_there["sha256"] != guest["sha256"]:
            raise ValueError(
                f"{out} cannot be resumed: {now_there['file']}, which defines its {guest['kind']} {guest['name']!r}, has "
                "changed since; bring the file back as it was, or start a new run"
            )


def _flat(plain: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a.b": value}; an empty dict has no entries."""
    flat: dict[str, Any] = {}
    for name, value in plain.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
