"""Run directories with random weights, for what needs a model that was trained only in name."""

from pathlib import Path
from typing import Any

import torch

from dynavit.data.config import DataConfig
from dynavit.engine.checkpoint import Snapshot, write_checkpoint
from dynavit.models import create_model
from dynavit.runs.config import TrainConfig, to_plain
from dynavit.runs.directory import RunDirectory
from dynavit.runs.model_files import ModelCard

DIGITS = [str(digit) for digit in range(10)]


def random_run(
    path: Path,
    *,
    data: str = "digits",
    data_dir: Path | None = None,
    classes: list[str] = DIGITS,
    side: int = 8,
    channels: int = 1,
    seed: int = 0,
    favourite: int | None = None,
) -> Path:
    """A model of one block. With `favourite`, it takes every image for that class, and its other logits are far below 0."""
    call: dict[str, Any] = {"name": "vit_micro", "norm": "ln", "num_classes": len(classes), "in_chans": channels}
    call |= {"img_size": [side, side], "patch_size": side // 4, "depth": 1, "norm_blocks": 1}
    run = RunDirectory.create(path)
    config = TrainConfig(model="vit_micro", norm="ln", data=data, data_dir=data_dir, seed=seed)
    config.loading = DataConfig(image_size=side, workers=0)
    run.write_config(to_plain(config))
    (path / "metrics.jsonl").write_text("")
    half = [0.5] * channels
    kind = {"kind": "memory", "stored_size": [side, side]} if data == "digits" else {"kind": "files", "crop_pct": 1.0}
    ModelCard(call, classes, {**kind, "image_size": [side, side], "mean": half, "std": half}, {"name": data}).write(path)
    (path / "checkpoints").mkdir()
    write_weights(path, call, seed, favourite)
    return path


def write_weights(path: Path, call: dict[str, Any], seed: int, favourite: int | None = None, step: int = 1) -> None:
    torch.manual_seed(seed)
    model = create_model(**call)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    if favourite is not None:
        torch.nn.init.constant_(model.head.bias, -1e4).data[favourite] = 1e4
    write_checkpoint(path / "checkpoints" / "last", Snapshot(model.state_dict(), None, {"step": step}))
