"""Data sets that torchvision can fetch: where they are kept, and what is said without a network."""

import os
from collections.abc import Callable
from pathlib import Path

from ..common.network import require_network
from ..common.torchvision_shim import ensure_torchvision
from .config import DataConfig


def kept_in(name: str, data_dir: Path | None, config: DataConfig) -> Path:
    """The folder of a data set: the one that is given, otherwise that of earlier downloads if it is there, or of the one asked
    for."""
    if data_dir is not None:
        return data_dir
    place = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "dynavit" / "data" / name
    if not config.download and not place.is_dir():
        raise ValueError(f"{name} is not part of the package: say where it is with --data-dir, or fetch it with --download")
    return place


def fetch(name: str, address: str, place: Path, download: Callable[[Path], object]) -> None:
    """Call torchvision's `download` into a folder; ValueError at once without a network, and where it fails."""
    require_network(address, name)
    ensure_torchvision()
    place.mkdir(parents=True, exist_ok=True)
    try:
        download(place)
    except (OSError, RuntimeError) as error:  # RuntimeError: "File not found or corrupted."
        reason = " ".join(str(error).split())
        raise ValueError(f"{name} could not be fetched into {place} ({reason}); try again, or give --data-dir") from error
