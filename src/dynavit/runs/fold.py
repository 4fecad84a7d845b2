"""A run without its foldable norms, as a run of its own."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Unpack

import torch
from torch import Tensor, nn

from ..common.data import LoaderOptions
from ..common.owned import Names
from ..deploy.directory import new_directory
from ..deploy.fold.folding import fold
from ..deploy.fold.report import FoldReport
from ..engine.checkpoint import Snapshot, write_checkpoint
from ..engine.progress import Progress
from ..norms.recalibrate import recalibrate as recompute_statistics
from .directory import RUN_NAMES, RunDirectory
from .model_files import ModelCard, load
from .opened import Opened
from .overview import overview_of_run
from .subject import Subject, WhichOptions

BATCH = 64


def fold_run(
    run: str | PathLike[str] | Subject,
    out: str | PathLike[str] | None = None,
    *,
    recalibrate: int | None = None,
    grid: tuple[int, int] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    **which: Unpack[WhichOptions],
) -> tuple[Path, FoldReport]:
    """Fold a run's model into a directory of its own, RUN-folded if not given; returns that and the report.

    The result is a run again: it can be loaded, evaluated, calibrated and exported. It cannot be trained on.

    Args:
        recalibrate: first recompute the norms' statistics on so many batches of 64 training images, varied as in training.
        grid: freeze every DTN for this grid of tokens (in a pyramid: of the first DTN), the one of the run's own images.
        which: the fields of `Subject`; data and data_dir are those of the images to recalibrate on.
    """
    subject = Subject.of(run, which)
    out = beside(subject.run, "folded", out)
    model, card, source = subject.load()
    if recalibrate is not None:
        opened = subject.open()
        recompute_statistics(opened.model, training_images(opened), batches=recalibrate)
        model, source = opened.model.cpu(), opened.source
    example = example_of(card, model)
    folded = fold(model, example=example, grid=grid)
    report: FoldReport = folded.fold_report  # type: ignore[assignment]
    with new_directory(out, ours=_names_in_folded_run, overwrite=overwrite) as directory:
        if progress is not None:
            progress.overview(lambda: overview_of_run(subject.run, model, card, source, writes=out))
        new, old = RunDirectory(directory), subject.directory
        shutil.copyfile(old.config_file, new.config_file)
        shutil.copyfile(old.env_file, new.env_file)
        if subject.policy() is not None:
            shutil.copyfile(old.policy_file, new.policy_file)
        about = {"source": source, "dynavit": version("dynavit"), "report": report.to_dict()}
        about["plan"] = folded.fold_plan.to_dict()  # type: ignore[union-attr, operator]
        replace(card, fold=about).write(directory)
        new.checkpoints.mkdir()
        state = {name: tensor.detach().cpu() for name, tensor in folded.state_dict().items()}
        write_checkpoint(new.checkpoints / "last", Snapshot(state, None, {"step": source["step"]}))
        _check_same(folded, load(directory), example)
    return out, report


def training_images(opened: Opened) -> Iterator[Tensor]:
    """Batches of training images in random order, varied as in training, but not mixed.

    Statistics have to be of what the weights know. The black margins of shifted crops alone raise the variance behind a first
    convolution by 30 %; statistics of images as for evaluation cost 2 to 3 points of accuracy there.
    """
    _check_has_images(opened, "train")
    how = LoaderOptions(
        train=True,
        batch_size=min(BATCH, len(opened.data.splits["train"])),
        augment=replace(opened.config.augment, mixup=0.0, cutmix=0.0),
        config=opened.loading,
        device=opened.processes.device,
        dtype=opened.processes.dtype,
    )
    for (batch,) in opened.data.loader("train", how).epoch():
        yield batch.inputs[: batch.count]


def chosen_images(opened: Opened, split: str, choose: Callable[[int], Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """(images, labels) of a split: those whose numbers `choose` gives, from how many there are."""
    _check_has_images(opened, split)
    part = replace(opened, data=opened.data.subset(split, choose(len(opened.data.splits[split]))))
    for (batch,) in part.loader(split, BATCH).epoch():
        yield batch.inputs[: batch.count], batch.targets[: batch.count]


def _check_has_images(opened: Opened, split: str) -> None:
    if split not in opened.data.splits:
        there = ", ".join(opened.data.splits)
        raise ValueError(f"{opened.data.name} has no images in the split {split!r}, which this needs; it has {there}")


def beside(run: Path, ending: str, out: str | PathLike[str] | None) -> Path:
    """The directory that was asked for, or RUN-<ending>."""
    return Path(out) if out is not None else run.with_name(f"{run.resolve().name}-{ending}")


def example_of(card: ModelCard, model: nn.Module) -> Tensor:
    """Two random images of the model's size, type and device."""
    like = next(model.parameters())
    return torch.randn(2, *card.input_size, generator=torch.Generator().manual_seed(0)).to(like)


def _names_in_folded_run(path: Path) -> Names | None:
    return RUN_NAMES if RunDirectory(path).card_file.is_file() and ModelCard.read(path).fold is not None else None


@torch.no_grad()
def _check_same(folded: nn.Module, loaded: nn.Module, images: Tensor) -> None:
    """The written weights must come back bit by bit."""
    pairs = zip(
        *(outputs if isinstance(outputs, tuple) else (outputs,) for outputs in (folded(images), loaded(images))), strict=True
    )
    if not all(torch.equal(wrote, read) for wrote, read in pairs):
        raise ValueError("the folded model does not come back from its file as it was; nothing was written")
