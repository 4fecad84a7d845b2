"""A bundle of a run's model, which needs no training code."""

from functools import partial
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch

from ..bench.timing import time_interleaved
from ..deploy.bundle.manifest import names_in_bundle, read_manifest, write_manifest
from ..deploy.bundle.runner import OnnxPart
from ..deploy.directory import new_directory
from ..deploy.export.quantise import quantise_onnx
from ..deploy.export.write_model import Format, write_model
from ..deploy.fold.folding import fold
from ..engine.progress import Progress
from ..tasks.classification import Classification
from ..tasks.table import TASKS
from .exit_facts import describe_calibration, describe_exits
from .fold import beside, chosen_images, example_of
from .overview import overview_of_run
from .subject import Subject, WhichOptions

HELD_OUT = 1000  # images, at most, on which int8 is compared with float32


def export_run(
    run: str | PathLike[str] | Subject,
    format: Format = "onnx",
    out: str | PathLike[str] | None = None,
    *,
    folded: bool = False,
    int8: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    **which: Unpack[WhichOptions],
) -> tuple[Path, dict[str, Any]]:
    """Write a bundle of a run's model, RUN-onnx or RUN-pt2 if not given; returns that and its manifest.

    Every file is compared with the model in float64 before the bundle appears; one that differs is an error.

    Args:
        folded: fold the model first.
        int8: ONNX only: also a version with 8-bit weights, with its accuracy and time beside float32.
        which: the fields of `Subject`; data and data_dir are those of the images that int8 is tried on.
    """
    subject = Subject.of(run, which)
    out = beside(subject.run, format, out)
    model, card, source = subject.load()
    card.require_guests(subject.run, "task")
    features = TASKS[card.task].gives_features
    if not features and not (card.classes and issubclass(TASKS[card.task], Classification)):
        raise ValueError(
            f"{subject.run}: a bundle gives classes or features of images, and its task {card.task!r} gives neither"
        )
    cascade = isinstance(getattr(model, "exits", None), torch.nn.ModuleList)
    if int8 and (format != "onnx" or cascade or features):
        what = "features" if features else "cascades" if format == "onnx" else f"the format {format}"
        raise ValueError(f"8-bit weights are written for ONNX classifiers, not for {what}; leave --int8 out")
    fold_facts = (card.fold or {}).get("report")
    if folded:
        model = fold(model, example=example_of(card, model))
        fold_facts = model.fold_report.to_dict()  # type: ignore[union-attr, operator]
    with new_directory(out, ours=names_in_bundle, overwrite=overwrite) as directory:
        if progress is not None:
            progress.overview(lambda: overview_of_run(subject.run, model, card, source, writes=out))
        facts = write_model(
            model, directory, card.input_size, [] if features else card.classes, format=format, policy=subject.policy()
        )
        facts |= {
            "preprocess": {**card.preprocess, "channels": len(card.preprocess["mean"])},
            "model": card.model,
            "model_version": source["sha256"][:12],
            "exits": describe_exits(model, card.input_size),
            "calibration": describe_calibration(subject),
            "task": card.task,
            "norm": card.model.get("norm"),
            "source": source,
            "fold": fold_facts and {name: fold_facts[name] for name in ("folded", "partly", "left", "error", "warnings")},
            "versions": {
                name: version(name) for name in ("dynavit", "torch", *(("onnx", "onnxruntime") if format == "onnx" else ()))
            },
        }
        if int8:
            facts["int8"] = _add_int8(subject, directory)
        write_manifest(directory, facts)
        read_manifest(directory)
    return out, facts


def _add_int8(subject: Subject, directory: Path) -> dict[str, Any]:
    """Write model.int8.onnx beside model.onnx; its accuracy and time, and those of float32."""
    file = directory / "model.int8.onnx"
    quantise_onnx(directory / "model.onnx", file)
    models = {"float32": OnnxPart(directory / "model.onnx"), "int8": OnnxPart(file)}
    labels: list[Any] = []
    said: dict[str, list[Any]] = {name: [] for name in models}
    images = np.zeros(0, np.float32)
    opened = subject.open()
    for inputs, targets in chosen_images(opened, opened.final_split, _evenly):
        images = inputs.float().cpu().numpy()
        labels.append(targets.cpu().numpy())
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


def _evenly(count: int) -> torch.Tensor:
    return torch.linspace(0, count - 1, min(count, HELD_OUT)).long()
