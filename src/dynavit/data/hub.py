"""Data sets of Hugging Face's `datasets` (extra `data`)."""

from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from ..common.extras import require
from ..common.network import offline_hub
from .config import DataConfig
from .dataset import DataSet, MapSplit
from .folder import photo_data_set
from .read_image import read_image

SPLITS = {"train": ("train",), "val": ("validation", "val", "valid"), "test": ("test",)}


def open_hub(name: str, data_dir: Path | None, config: DataConfig) -> DataSet:
    """A name on the Hub, or a folder; `data_dir` is where downloads are kept. Its one column of images and its one column of
    classes are used. Without `config.download` only what is on this machine. A test split without labels is left out."""
    datasets = require("datasets", "data", f"data hfds/{name}")
    with nullcontext() if config.download else offline_hub("datasets.config"):
        try:
            kept = datasets.load_dataset(name, cache_dir=None if data_dir is None else str(data_dir))
        except OSError as error:
            hint = "" if config.download else "; --download fetches it from the Hub"
            raise ValueError(f"data hfds/{name}: {error}{hint}") from error

    splits: dict[str, MapSplit] = {}
    classes: list[str] = []
    for split, aliases in SPLITS.items():
        for alias in [alias for alias in aliases if alias in kept][:1]:
            images, labels = (_column(name, kept[alias], kind) for kind in (datasets.Image, datasets.ClassLabel))
            classes = classes or list(kept[alias].features[labels].names)
            source = kept[alias].cast_column(images, datasets.Image(decode=False))
            numbers = torch.tensor(source[labels][:])
            if not (numbers < 0).all():
                splits[split] = MapSplit(_HubImages(f"{alias} of hfds/{name}", source, images), range(len(source)), numbers)
    if not splits:
        raise ValueError(f"data hfds/{name}: has the splits {', '.join(kept)}, but no train and no validation")
    return photo_data_set(f"hfds/{name}", splits, classes, config)


def _column(name: str, source: Any, kind: type) -> str:
    columns = [column for column, feature in source.features.items() if isinstance(feature, kind)]
    if len(columns) != 1:
        raise ValueError(
            f"data hfds/{name}: expected one column of type {kind.__name__}, found {len(columns)} among "
            f"{', '.join(source.features)}"
        )
    return columns[0]


class _HubImages:
    """Reads by number, also in a worker: there the rows are mapped from disk."""

    def __init__(self, name: str, source: Any, column: str) -> None:
        self.name, self.source, self.column = name, source, column

    def __call__(self, number: int) -> Image.Image:
        image = self.source[number][self.column]
        if image["bytes"]:
            return read_image(BytesIO(image["bytes"]), f"{number} of {self.name}")
        return read_image(image["path"])
