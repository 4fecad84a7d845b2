"""Train a model into a run directory, and evaluate it at the end."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.data import LoaderOptions
from ..common.files import read_json
from ..common.registry import guests_used
from ..engine.log import require_tensorboard
from ..engine.loop import Summary, train
from ..engine.processes import Processes
from ..engine.progress import Progress
from .assemble import build_model, decided, open_training_data, task_of_run, task_options
from .config import TrainConfig, to_plain
from .directory import RunDirectory
from .evaluate import EVAL_BATCH, evaluate_run
from .metrics_csv import write_metrics_csv
from .model_files import ModelCard
from .opened import final_split
from .overview import norm_text, overview_of_training
from .same_run import check_same_run, dependence

if TYPE_CHECKING:
    from ..common.data import Data


def train_run(
    config: TrainConfig,
    out: str | PathLike[str] | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    command: Sequence[str] | None = None,
) -> Summary:
    """Train a model into the directory `out`, then evaluate it on the test split, or on validation where there is none.

    Without `out` the directory is runs/MODEL-NORM-DATA-seedN; `Summary.directory` says where it is.
    An existing directory is refused, unless `resume` goes on where it stopped or `overwrite` begins again. With several
    processes (torchrun) all of them call this.
    """
    progress = progress or Progress()
    if resume and out is not None:
        RunDirectory(out).check_resumable()
    processes = Processes(config.engine)
    with guests_used() as guests:
        data = open_training_data(config, processes, Path(out) if resume and out is not None else None)
        config = decided(config, data)
        run = RunDirectory(out if out is not None else _directory_of(config))
        model, call = build_model(config, data)
        started: list[str] = []
        if config.init_from is not None and not (resume and run.has_checkpoint()):
            from .initial import initial_weights

            started = initial_weights(model, config.init_from, partial=config.init_partial)
        task_class = task_of_run(config, data)
        options = task_options(task_class, config.task_options)
        task = task_class.build(model, data, options)  # last: a task may copy the model, as a teacher does
    # Options of the task as they are understood, whichever way they were written: 1,2 or [1.0, 2.0].
    config = replace(config, task_options={name: to_plain(options)[name] for name in config.task_options})
    card = _card(call, data, task_class.name, to_plain(options), [guest._asdict() for guest in guests.values()])
    notes = list(data.notes)
    for option, what in {"patch_size": "patches of {} pixels", "splits": "tokens by the splits {}"}.items():
        if option in call and option not in config.model_options:
            notes.append(f"{config.model} gets {what.format(call[option])} to fit the images (model_options.{option})")
    notes += started
    loaders = {
        split: task.loader(data, split, _how(config, processes, train=split == "train"))
        for split in data.splits
        if split != "test"
    }
    if round(config.epochs * loaders["train"].steps) < 1:
        raise ValueError(f"{config.epochs} epochs of {loaders['train'].steps} steps leave nothing to train; raise --epochs")
    if config.engine.tensorboard:
        require_tensorboard()
    norms = norm_text(model)
    with _begun(run, config, card, processes, norms, resume=resume, overwrite=overwrite, command=command or ()):
        if processes.is_main:
            progress.overview(lambda: overview_of_training(config, data, model, processes, run.path))
            for note in notes:
                progress.note(note)
        processes.barrier()
        summary = train(
            task,
            loaders["train"],
            loaders.get("val"),
            config.plan,
            run,
            processes=processes,
            resume=resume,
            progress=progress,
            depends_on=dependence(config, card),
        )
        if processes.is_main and not (summary.nothing_to_do and run.metrics_table.is_file()):
            write_metrics_csv(run.path)
        last = final_split(data)
        if last in data.splits and not _has_result(run.evaluation_file(last), summary.steps):
            try:
                result = evaluate_run(run.path, split=last, data=data, device=config.engine.device, progress=progress)
            except KeyboardInterrupt:
                progress.note(f"the training is complete, its evaluation on {last} is not; --resume does it")
                raise
            if "not_stored" in result:
                raise OSError(result["not_stored"])
        processes.barrier()
    return summary


@contextmanager
def _begun(
    run: RunDirectory,
    config: TrainConfig,
    card: ModelCard,
    processes: Processes,
    norms: str,
    *,
    resume: bool,
    overwrite: bool,
    command: Sequence[str],
) -> Iterator[None]:
    """Inside, the directory is there with the files that a training begins with, and only this training writes to it.

    A training that fails before its first line in the log leaves none of them.
    """
    with run.alone(make=True, main=processes.is_main):
        if not processes.is_main:
            yield
            return
        RunDirectory.create(run.path, resume=resume, overwrite=overwrite)
        if resume:
            check_same_run(run, config, card)
        if run.finished() is None:  # otherwise its files tell how it was trained
            run.write_config(to_plain(config))
            facts = {"device": str(processes.device), "processes": processes.world, "seed": config.seed}
            run.write_env(**facts, task=card.task, norms=norms, command=list(command))
            card.write(run.path)
        try:
            yield
        except BaseException:
            run.forget_start()
            raise


def _directory_of(config: TrainConfig) -> Path:
    """A directory's name for a run that was not given one."""
    return Path("runs") / f"{config.model}-{config.norm or 'own'}-{config.data}-seed{config.seed}".replace("/", "_")


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


def _card(call: dict[str, Any], data: "Data", task: str, options: dict[str, Any], guests: list[Any]) -> ModelCard:
    facts = data.describe()
    classes, preprocess = facts.pop("classes", []), facts.pop("preprocess", {})
    sizes = {"name": data.name} | {name: len(split) for name, split in data.splits.items()}
    return ModelCard(
        call, [str(name) for name in classes], preprocess, sizes, task=task, task_options=options, more=facts, guests=guests
    )


def _has_result(file: Path, steps: int) -> bool:
    """Whether this evaluation was made at the end of the training, and not when it was interrupted."""
    return file.is_file() and read_json(file).get("step") == steps
