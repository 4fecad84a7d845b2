"""From a run to what is shipped: a folded run, or a bundle that needs no training code."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from .bench.timing import time_interleaved
from .calibrate import POLICY, read_policy
from .config import TrainConfig, from_plain
from .data.loader import make_loader
from .data.open import open_data
from .deploy.bundle.manifest import is_bundle, read_manifest, write_manifest
from .deploy.bundle.runner import OnnxPart
from .deploy.directory import new_directory
from .deploy.export.quantise import quantise_onnx
from .deploy.export.write_model import Format, write_model
from .deploy.fold.folding import fold
from .deploy.fold.report import FoldReport
from .engine.checkpoint import EMA, Snapshot, checkpoint_step, verify_checkpoint, write_checkpoint
from .engine.run_dir import RunDirectory
from .model_files import MODEL_CARD, ModelCard, load
from .models.cascade import Cascade
from .norms.recalibrate import recalibrate as recompute_statistics

Checkpoint = Literal["last", "best"]
Weights = Literal["model", "ema"] | None
HELD_OUT = 1000  # images, at most, on which int8 is compared with float32
BATCH = 64


def fold_run(
    run: str | PathLike[str],
    out: str | PathLike[str] | None = None,
    *,
    checkpoint: Checkpoint = "last",
    weights: Weights = None,
    recalibrate: int | None = None,
    grid: tuple[int, int] | None = None,
    overwrite: bool = False,
) -> tuple[Path, FoldReport]:
    """Fold a run's model into a directory of its own, RUN-folded if not given; returns that and what was folded.

    The result is a run again: it can be loaded, evaluated, calibrated and exported. It cannot be trained on.

    Args:
        recalibrate: first recompute the norms' statistics on so many batches of 64 training images.
        grid: freeze every DTN for this grid of tokens (in a pyramid: of the first DTN), the one of the run's own images.
    """
    run, out = Path(run), _beside(run, "folded", out)
    model, card = load(run, checkpoint, weights), ModelCard.read(run)
    if recalibrate is not None:
        recompute_statistics(model, training_images(run, recalibrate), batches=recalibrate)
    folded = fold(model, example=_example(card, model), grid=grid)
    report: FoldReport = folded.fold_report  # type: ignore[assignment]
    with new_directory(out, replaceable=_is_folded_run, overwrite=overwrite) as directory:
        for name in ("config.yaml", "env.json"):
            shutil.copyfile(run / name, directory / name)
        if _policy_fits(run, checkpoint, weights):
            shutil.copyfile(run / POLICY, directory / POLICY)
        about = {"source": _source(run, checkpoint, weights), "dynavit": version("dynavit"), "report": report.to_dict()}
        about["plan"] = folded.fold_plan.to_dict()  # type: ignore[union-attr, operator]
        replace(card, fold=about).write(directory)
        (directory / "checkpoints").mkdir()
        step = checkpoint_step(run / "checkpoints" / checkpoint)
        state = {name: tensor.detach().cpu() for name, tensor in folded.state_dict().items()}
        write_checkpoint(directory / "checkpoints" / "last", Snapshot(state, None, {"step": step}))
        _check_same(folded, load(directory), _example(card, model))
    return out, report


def export_run(
    run: str | PathLike[str],
    format: Format = "onnx",
    out: str | PathLike[str] | None = None,
    *,
    folded: bool = False,
    int8: bool = False,
    checkpoint: Checkpoint = "last",
    weights: Weights = None,
    overwrite: bool = False,
) -> tuple[Path, dict[str, Any]]:
    """Write a bundle of a run's model, RUN-onnx or RUN-pt2 if not given; returns that and its manifest.

    Every file is compared with the model in float64 before the bundle appears; one that differs is an error.

    Args:
        folded: fold the model first.
        int8: ONNX only: also a version with 8-bit weights, with its accuracy and time beside float32.
    """
    run, out = Path(run), _beside(run, format, out)
    model, card = load(run, checkpoint, weights), ModelCard.read(run)
    if int8 and (format != "onnx" or isinstance(model, Cascade)):
        what = "cascades" if format == "onnx" else f"the format {format}"
        raise ValueError(f"8-bit weights are written for ONNX classifiers, not for {what}; leave --int8 out")
    fold_facts = (card.fold or {}).get("report")
    if folded:
        model = fold(model, example=_example(card, model))
        fold_facts = model.fold_report.to_dict()  # type: ignore[union-attr, operator]
    policy = read_policy(run) if _policy_fits(run, checkpoint, weights) else None
    with new_directory(out, replaceable=is_bundle, overwrite=overwrite) as directory:
        facts = write_model(model, directory, card.input_size, card.classes, format=format, policy=policy)
        facts |= {
            "preprocess": {**card.preprocess, "channels": len(card.preprocess["mean"])},
            "model": card.model,
            "norm": card.model.get("norm"),
            "source": _source(run, checkpoint, weights),
            "fold": fold_facts and {name: fold_facts[name] for name in ("folded", "partly", "left", "error", "warnings")},
            "versions": {
                name: version(name) for name in ("dynavit", "torch", *(("onnx", "onnxruntime") if format == "onnx" else ()))
            },
        }
        if int8:
            facts["int8"] = _add_int8(run, directory)
        write_manifest(directory, facts)
        read_manifest(directory)
    return out, facts


def training_images(run: Path, batches: int) -> Iterator[Tensor]:
    """Batches of training images in random order, prepared as for evaluation."""
    chosen = torch.Generator().manual_seed(0)
    yield from (images for images, _ in _images(run, "train", lambda n: torch.randperm(n, generator=chosen)[: batches * BATCH]))


def _images(run: Path, split: str | None, choose: Callable[[int], Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """(images, labels) of a split of the run's own data, test or val if not given."""
    config = from_plain(TrainConfig, RunDirectory(run).read_config())
    data = open_data(config.data, config.data_dir, config.loading)
    split = split or ("test" if "test" in data.splits else "val")
    if split not in data.splits:
        raise ValueError(f"{data.name} has no images in the split {split!r}, which this needs; it has {', '.join(data.splits)}")
    part = data.splits[split]
    data = replace(data, splits={split: part.subset(choose(len(part)))})
    for (batch,) in make_loader(data, split, train=False, batch_size=BATCH, config=config.loading).epoch():
        yield batch.inputs[: batch.count], batch.targets[: batch.count]


def _add_int8(run: Path, directory: Path) -> dict[str, Any]:
    """Write model.int8.onnx beside model.onnx; its accuracy and time, and those of float32."""
    file = directory / "model.int8.onnx"
    quantise_onnx(directory / "model.onnx", file)
    models = {"float32": OnnxPart(directory / "model.onnx"), "int8": OnnxPart(file)}
    labels: list[Any] = []
    said: dict[str, list[Any]] = {name: [] for name in models}
    images = np.zeros(0, np.float32)
    for inputs, targets in _images(run, None, lambda n: torch.linspace(0, n - 1, min(n, HELD_OUT)).long()):
        images = inputs.float().numpy()
        labels.append(targets.numpy())
        for name, model in models.items():
            said[name].append(model(images)[0].argmax(-1))
    right, answers = np.concatenate(labels), {name: np.concatenate(found) for name, found in said.items()}
    times = time_interleaved({name: partial(model, images[:1]) for name, model in models.items()})
    return {
        "file": file.name,
        "held_out_images": len(right),
        "accuracy": {name: float((found == right).mean()) for name, found in answers.items()},
        "same_answer": float((answers["float32"] == answers["int8"]).mean()),
        "milliseconds_at_batch_1": {name: 1e3 * timing.median for name, timing in times.items()},
        "bytes": {name: model.file.stat().st_size for name, model in models.items()},
    }


def _beside(run: str | PathLike[str], ending: str, out: str | PathLike[str] | None) -> Path:
    if out is not None:
        return Path(out)
    return Path(run).with_name(f"{Path(run).resolve().name}-{ending}")


def _source(run: Path, checkpoint: Checkpoint, weights: Weights) -> dict[str, Any]:
    where = run / "checkpoints" / checkpoint
    used = weights or ("ema" if EMA in verify_checkpoint(where) else "model")
    return {"run": run.resolve().name, "checkpoint": checkpoint, "weights": used, "step": checkpoint_step(where)}


def _policy_fits(run: Path, checkpoint: Checkpoint, weights: Weights) -> bool:
    """Thresholds were found for the last checkpoint and the weights that are taken by default."""
    return checkpoint == "last" and weights is None and (run / POLICY).is_file()


def _is_folded_run(path: Path) -> bool:
    return (path / MODEL_CARD).is_file() and ModelCard.read(path).fold is not None


def _example(card: ModelCard, model: nn.Module) -> Tensor:
    like = next(model.parameters())
    return torch.randn(2, *card.input_size, generator=torch.Generator().manual_seed(0)).to(like)


@torch.no_grad()
def _check_same(folded: nn.Module, loaded: nn.Module, images: Tensor) -> None:
    """What was written must come back bit by bit."""
    pairs = zip(
        *(outputs if isinstance(outputs, tuple) else (outputs,) for outputs in (folded(images), loaded(images))), strict=True
    )
    if not all(torch.equal(wrote, read) for wrote, read in pairs):
        raise ValueError("the folded model does not come back from its file as it was; nothing was written")
