"""metrics.jsonl: one JSON object per line, in the order things happened.

    {"kind": "train", "step", "epoch", "loss", "lr", "grad_norm", ..., "time"}
    {"kind": "eval", "split", "weights": "model" | "ema", "step", "epoch", <name>: <value>, ..., "time"}
    {"kind": "scalars", "step", "epoch", "values": {module path: {name: [number, ...]}}}
    {"kind": "note", "step", "text"}

`step` counts the steps done. Means are over all samples since the line before. What depends on the clock stands in "time" only
("seconds", and for train "training_seconds" and "images_per_second"): the rest is the same for a run that was interrupted and
resumed.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..common.extras import not_installed
from ..common.files import with_nulls, writing
from ..common.json_lines import end_of_whole_lines, json_lines
from ..runs.directory import RunDirectory
from .optional import optional_methods
from .task_state import module_path


class Log:
    """The lines, and TensorBoard's files if wanted.

    Attributes:
        problem: what is missing of the lines that were there at the checkpoint; None if nothing is.
    """

    def __init__(self, run: RunDirectory, step: int, size: int, tensorboard: bool = False) -> None:
        """Go on after `step`, when the file had `size` bytes; what was written later is cut off, and so is half a line."""
        self.board = _open_tensorboard(run.tensorboard, step) if tensorboard else None
        self.file = run.metrics_file.open("ab")
        kept = end_of_whole_lines(run.metrics_file, min(size, run.metrics_file.stat().st_size))
        self.file.truncate(kept)
        self.problem: str | None = None
        if kept < size:
            self.problem = (
                f"{run.metrics_file.name} had {size} bytes at step {step} and {kept} of them are left: lines before that step "
                "are lost, the weights are not concerned"
            )

    def write(self, record: dict[str, Any]) -> None:
        line = json.dumps(with_nulls(record), ensure_ascii=False, allow_nan=False)
        with writing(self.file.name):
            self.file.write(line.encode() + b"\n")
            self.file.flush()
        if self.board is not None:
            for name, value in _curves(record):
                self.board.add_scalar(name, value, record["step"])

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self.file.fileno()).st_size

    def force_to_disk(self) -> int:
        """Returns the size of the file."""
        os.fsync(self.file.fileno())
        return os.fstat(self.file.fileno()).st_size

    def close(self) -> None:
        with writing(self.file.name):
            self.file.close()
        if self.board is not None:
            self.board.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a metrics.jsonl; a run that is still writing may have begun another, and damaged ones are left
    out."""
    return [line for line in json_lines(path) if line is not None]


def _curves(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a line under TensorBoard's names; those of layers are grouped by their meaning.

    lambda_mean/blocks.0.norm1.2 is head 2 of a layer.
    """
    if record["kind"] == "scalars":
        for path, lists in record["values"].items():
            for name, numbers in lists.items():
                ends = [f".{number}" for number in range(len(numbers))] if len(numbers) > 1 else [""]
                named = ((f"{name}/{path}{end}", value) for end, value in zip(ends, numbers, strict=True))
                yield from (pair for pair in named if pair[1] is not None)
    elif record["kind"] in ("train", "eval"):
        group = "train" if record["kind"] == "train" else f"{record['split']}_{record['weights']}"
        yield from ((f"{group}/{name}", value) for name, value in record.items() if isinstance(value, float))


@torch.no_grad()
def module_scalars(task: nn.Module) -> dict[str, dict[str, list[float | None]]]:
    """{module path: {name: numbers}} of all modules that report `scalars()`; paths in the model are the model's own.

    Names like "lambda.0", "lambda.1" are one list, "lambda"; None where a number in between is absent.
    """
    report = {}
    for path, scalars in optional_methods(task, "scalars").items():
        lists: dict[str, list[float | None]] = {}
        for name, value in scalars().items():
            stem, _, index = name.rpartition(".")
            stem, position = (stem, int(index)) if stem and index.isdigit() else (name, 0)
            numbers = lists.setdefault(stem, [])
            numbers.extend([None] * (position + 1 - len(numbers)))
            numbers[position] = value
        report[module_path(path)] = lists
    return report


def _open_tensorboard(directory: Path, step: int) -> Any:
    return require_tensorboard()(str(directory), purge_step=step + 1)


def require_tensorboard() -> Any:
    """TensorBoard's writer; ValueError says how to install it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError(not_installed("tensorboard", "track", "engine.tensorboard")) from error
    return SummaryWriter
