"""The facts that a command begins with: data, model, device, where it writes. Every verb tells them through its `Progress`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..bench.size import Size, measure_size
from ..convert.norm_kinds import norm_kinds
from ..engine.processes import Processes

if TYPE_CHECKING:
    from ..common.data import Data
    from .config import TrainConfig
    from .model_files import ModelCard
    from .opened import Opened


def overview_of_training(
    config: "TrainConfig", data: "Data", model: nn.Module, processes: Processes, out: Path
) -> dict[str, str]:
    """{label: text} of a run that begins."""
    size = measure_size(model, image_like(getattr(data, "image_size", None), getattr(data, "channels", 0)), training=True)
    batch = -(-config.batch_size // (config.optim.accumulate * processes.world))
    memory = size.step_bytes(batch)
    several = f", {processes.world} processes" if processes.world > 1 else ""
    return {
        "data": data_text(data, config.data_dir),
        "model": model_text(config.model, size),
        "norm": norm_text(model),
        **({} if memory is None else {"memory": f"about {_bytes(memory)} for a step of {config.batch_size} images"}),
        "device": f"{device_text(processes.device)}{several}, {config.engine.precision}",
        "writes": str(out),
    }


def overview_of_run(
    run: Path,
    model: nn.Module,
    card: "ModelCard",
    source: Mapping[str, Any],
    *,
    data: str | None = None,
    writes: Path | str | None = None,
    measured: bool = True,
) -> dict[str, str]:
    """{label: text} of a trained run that is asked about some data; its model runs once, unless it is not `measured`.

    `source` tells which weights the model has, see `Opened`.
    """
    return {
        "run": f"{run}, {source['checkpoint']} checkpoint (step {source['step']}), {source['weights']} weights"
        if source.get("step")
        else str(run),
        **({} if data is None else {"data": data}),
        "model": model_text(card.model["name"], measure_size(model, sample_for(card.facts) if measured else None)),
        "norm": norm_text(model),
        "device": device_text(next(model.parameters(), torch.empty(0)).device),
        **({} if writes is None else {"writes": str(writes)}),
    }


def overview_of_opened(opened: "Opened", *splits: str, writes: Path | str | None = None) -> dict[str, str]:
    """{label: text} of a trained run that is asked about some splits; all, if none is named."""
    data_dir = opened.subject.data_dir or (opened.config.data_dir if opened.is_own_data else None)
    data = data_text(opened.data, data_dir, splits)
    return overview_of_run(opened.path, opened.model, opened.card, opened.source, data=data, writes=writes)


def data_text(data: "Data", data_dir: Path | None, splits: Sequence[str] = ()) -> str:
    """Its name and place, how many samples, of which size, how many classes."""
    counts = ", ".join(f"{len(data.splits[name]):,} {name}" for name in splits or data.splits if name in data.splits)
    sides, classes = getattr(data, "image_size", None), getattr(data, "classes", None)
    of_size = f" images of {sides[0]}x{sides[1]}" if sides else ""
    return (
        f"{data.name}{f' in {data_dir}' if data_dir else ''}: {counts}{of_size}{f', {len(classes)} classes' if classes else ''}"
    )


def model_text(name: str, size: Size) -> str:
    tokens = ", ".join(f"{rows}x{cols}" for rows, cols in size.grids)
    parts = [name, f"{tokens} tokens" if tokens else "", f"{size.parameters:,} parameters" if size.parameters else ""]
    return ", ".join([part for part in (*parts, f"{size.gmacs:.3g} GMACs" if size.gmacs else "") if part])


def norm_text(model: nn.Module) -> str:
    """The norms of a model by name, the most frequent first."""
    kinds = norm_kinds(model).most_common()
    return ", ".join(kind if len(kinds) == 1 else f"{count} {kind}" for kind, count in kinds) or "none"


def device_text(device: torch.device) -> str:
    count = torch.get_num_threads()
    return f"{device}, {count} thread{'s' if count > 1 else ''}" if device.type == "cpu" else str(device)


def sample_for(facts: Mapping[str, Any]) -> Tensor | None:
    """(1, channels, height, width) zeros like the images that a card's facts describe; None if they are no images."""
    preprocess = facts.get("preprocess") or {}
    return image_like(preprocess.get("image_size"), len(preprocess.get("mean", ())))


def image_like(image_size: Sequence[int] | None, channels: int) -> Tensor | None:
    return torch.zeros(1, channels, *image_size) if image_size and channels else None


def _bytes(number: float) -> str:
    """
    >>> _bytes(3_400_000), _bytes(12_000_000_000)
    ('3 MB', '12.0 GB')
    """
    return f"{number / 1e6:.0f} MB" if number < 1e9 else f"{number / 1e9:.1f} GB"
