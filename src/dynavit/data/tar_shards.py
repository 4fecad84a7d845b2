"""Images in tar files, as webdataset writes them: `x.jpg` and `x.cls`, which holds the label as a number, make up sample x.

The tar files are indexed while opening, by their headers alone, and images are then read from their places. So samples have
numbers and come in any order, which streaming cannot give.
"""

import re
import tarfile
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image

from ..common.files import read_json
from .config import DataConfig
from .dataset import DataSet, MapSplit
from .folder import photo_data_set, some
from .pack import INDEX, Index
from .read_image import read_image

IMAGES = ("jpg", "jpeg", "png", "webp")
MOST_EMPTY = 1000  # classes for each one that has images: a few classes of many may be left, but a billion is a mistake
SPLITS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


class Place(NamedTuple):
    """The bytes of an image in a tar file."""

    shard: str
    sample: str
    start: int
    size: int


def open_shards(name: str, data_dir: Path | None, config: DataConfig) -> DataSet:
    """All tar files in `data_dir`, or of the folder `name` in it; train, val (validation) or test is a word of their path, as
    in imagenet1k-train-0000.tar."""
    if data_dir is None:
        raise ValueError(f"data wds/{name} needs data_dir, the folder that holds the tar files")
    folder = data_dir / name
    splits: dict[str, tuple[list[Place], list[int]]] = {}
    for shard in sorted(folder.rglob("*.tar")):
        places, labels = splits.setdefault(_split_of(shard.relative_to(folder)), ([], []))
        for place, label in index_shard(shard):
            places.append(place)
            labels.append(label)
    if not splits:
        raise ValueError(f"data wds/{name}: no tar files in {folder}")
    found = {label for _, labels in splits.values() for label in labels}
    classes = 1 + max(found)
    if classes > max(MOST_EMPTY * len(found), MOST_EMPTY):
        raise ValueError(
            f"data wds/{name}: the labels go up to {max(found)}, but only {len(found)} of them have images; count them from 0"
        )
    return photo_data_set(
        f"wds/{name}",
        {split: MapSplit(read_place, places, torch.tensor(labels)) for split, (places, labels) in splits.items()},
        _class_names(folder, classes),
        config,
    )


def _class_names(folder: Path, classes: int) -> list[str]:
    """Those in the index that `dynavit pack` writes, which also has classes without images; else numbers."""
    if not (folder / INDEX).is_file():
        return [str(label) for label in range(classes)]
    names: list[str] = read_json(folder / INDEX, Index)["classes"]
    if len(names) < classes:
        raise ValueError(f"{folder / INDEX} names {len(names)} classes, but the labels go up to {classes - 1}; pack again")
    return names


def index_shard(shard: Path) -> list[tuple[Place, int]]:
    """Samples in their order."""
    places, labels = {}, {}
    try:
        with tarfile.open(shard, "r:") as tar:  # a compressed one has no places to read from
            for member in tar:
                # A name ends at the first dot of its last part.
                if not member.isfile() or not (match := re.fullmatch(r"((?:.*/)?[^./]+)\.([^/]*)", member.name)):
                    continue
                sample, kind = match[1], match[2].lower()
                if kind in IMAGES:
                    places[sample] = Place(str(shard), sample, member.offset_data, member.size)
                elif kind == "cls" and (content := tar.extractfile(member)):
                    labels[sample] = _label(shard, sample, content.read())
    except tarfile.TarError as error:
        raise ValueError(f"cannot read {shard}: {error}; expected a tar file without compression") from error
    if lonely := sorted(places.keys() ^ labels.keys()):
        raise ValueError(
            f"{shard}: each sample needs an image ({', '.join(IMAGES)}) and a .cls file, but one lacks: {some(lonely)}"
        )
    if not places:
        raise ValueError(f"{shard}: holds no samples; expected images ({', '.join(IMAGES)}) and .cls files")
    return [(place, labels[sample]) for sample, place in places.items()]


def read_place(place: Place) -> Image.Image:
    with Path(place.shard).open("rb") as file:
        file.seek(place.start)
        return read_image(BytesIO(file.read(place.size)), f"{place.sample} of {place.shard}")


def _split_of(shard: Path) -> str:
    found = {SPLITS[word] for word in re.findall("[a-z]+", str(shard).lower()) if word in SPLITS}
    if len(found) != 1:
        raise ValueError(f"data wds/: {shard} should have one of the words train, val, test in its path, to say what it is for")
    return found.pop()


def _label(shard: Path, sample: str, content: bytes) -> int:
    if not re.fullmatch(rb"\s*[0-9]{1,9}\s*", content):
        raise ValueError(f"{shard}: {sample}.cls holds {content[:20]!r}, not a label, which is a number from 0 on")
    return int(content)
