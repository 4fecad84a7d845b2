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
from .data.config import DataConfig
from .data.dataset import DataSet
from .data.loader import make_loader
from .data.open import open_data
from .data.preprocess import describe_preprocessing, preprocess
from .deploy.bundle.answers import image_files
from .engine.checkpoint import checkpoint_step
from .engine.config import EngineConfig
from .engine.evaluate import evaluate
from .engine.loop import Summary, train
from .engine.processes import Processes
from .engine.progress import Silent
from .engine.run_dir import RunDirectory
from .model_files import ModelCard, load
from .models.cascade import Cascade
from .models.exit_policy import ExitPolicy
from .opened import final_split, open_run
from .samples import sample_predictions
from .tasks.choose import final_logits, task_for

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


def evaluate_run(
    run: str | PathLike[str],
    *,
    split: str | None = None,
    data: DataSet | None = None,
    data_name: str | None = None,
    data_dir: Path | None = None,
    loading: DataConfig | None = None,
    checkpoint: Literal["last", "best"] = "last",
    weights: Literal["model", "ema"] | None = None,
    batch_size: int = EVAL_BATCH,
    device: str | None = None,
    progress: Silent | None = None,
) -> dict[str, Any]:
    """Evaluate a run's model on a split of its own data set or another with the same classes; writes eval/<split>.json.

    The split is test where there is one, otherwise val, if not given. Several processes share the images; all of them call
    this.
    """
    progress, run = progress or Silent(), Path(run)
    opened = open_run(
        run,
        data=data,
        data_name=data_name,
        data_dir=data_dir,
        loading=loading,
        checkpoint=checkpoint,
        weights=weights,
        device=device,
    )
    model, card, config, data, processes = opened.model, opened.card, opened.config, opened.data, opened.processes
    split = split or opened.final_split
    if data.classes != card.classes:
        progress.note(f"classes have other names than in training: {data.classes[:3]}... instead of {card.classes[:3]}...")
    loader = opened.loader(split, batch_size)
    task = task_for(model, len(data.classes))
    evaluator = task.evaluator()
    start = time.perf_counter()
    results = evaluate(task, loader, processes, progress.note, evaluator)
    seconds = time.perf_counter() - start
    usual = "ema" if config.ema.decay else "model"
    elsewhere = data.name != card.data["name"] or data_dir not in (None, config.data_dir)
    parts = [data.name.replace("/", "_"), *([data_dir.name] if data_dir is not None else [])] if elsewhere else []
    parts += [split] + ([checkpoint] if checkpoint != "last" else []) + ([weights] if weights not in (None, usual) else [])
    report = {
        "data": data.name,
        "split": split,
        "checkpoint": checkpoint,
        "weights": weights or usual,
        "step": checkpoint_step(run / "checkpoints" / checkpoint),
        **results,
        **evaluator.details(),
        "classes": data.classes,
        "throughput": {"images_per_second": evaluator.samples / seconds, "batch_size": batch_size},
        "samples_shown": sample_predictions(model, data, split, processes),
    }
    if processes.is_main:
        report["file"] = str(RunDirectory(run).write_eval("-".join(parts), report))
    return report


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


@torch.no_grad()
def predict_run(
    run: str | PathLike[str],
    images: Sequence[str | PathLike[str]],
    *,
    top: int = 5,
    checkpoint: Literal["last", "best"] = "last",
    device: str | None = None,
) -> list[dict[str, Any]]:
    """What a run's model sees in image files; a directory stands for the images in it.

    One dict for each file: {"image", "label", "confidence", "top": [{"label", "confidence"}, ...]}, or {"image", "error"}.
    A cascade stops as soon as the thresholds of RUN/policy.json allow, and "exit" says where, counted from 1. They were found
    for the last checkpoint; without them, or with another checkpoint, the last exit answers.
    """
    run = Path(run)
    model, card = load(run, checkpoint), ModelCard.read(run)
    policy = read_policy(run) if checkpoint == "last" and (run / POLICY).is_file() else None
    processes = Processes(EngineConfig(device=device))
    model.to(processes.device, processes.dtype)  # also of a run in float64
    answers: list[dict[str, Any]] = []
    for path in image_files(images):
        try:
            pixels = preprocess(path, card.preprocess)
        except ValueError as error:
            answers.append({"image": str(path), "error": str(error)})
            continue
        pixels = pixels[None].to(processes.device)
        early = {}
        if policy is not None and isinstance(model, Cascade):
            logits, exit = _first_sure_exit(model, pixels, policy)
            early = {"exit": exit}
        else:
            logits = final_logits(model(pixels))
        probabilities = logits.softmax(-1)[0].double()
        best = probabilities.topk(min(top, len(card.classes)))
        found = [{"label": card.classes[i], "confidence": p} for p, i in zip(*map(Tensor.tolist, best), strict=True)]
        answers.append({"image": str(path), **found[0], "top": found, **early})
    return answers


def _first_sure_exit(cascade: Cascade, image: Tensor, policy: ExitPolicy) -> tuple[Tensor, int]:
    """(1, c, h, w) -> the logits it leaves with, (1, classes), and the number of its exit, from 1. Later ones are not run."""
    policy.check_fits(len(cascade.exits))
    state = cascade.begin(image)
    while True:
        logits, state = cascade.step(state)
        if policy.leaves(logits, state.exit - 1):  # the last exit always lets leave
            return logits, state.exit
