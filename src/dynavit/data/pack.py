"""Images of a folder as tar files, made small once, so that training does not decode large photographs again and again.

    train-00000.tar, train-00001.tar, ..., val-00000.tar    `number.jpg` and `number.cls`, as `tar_shards` reads them
    index.json                                              what was packed how; a record of each complete tar file

Samples keep the folder's order and labels, and a tar file is the same to the byte whenever it is made of the same images.
"""

import hashlib
import os
import tarfile
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import TypedDict

from PIL import Image

from ..common.files import replacing
from ..common.fits import AtLeastOne, Count, Pixels
from ..common.pictures import open_picture
from .read_image import as_rgb

INDEX = "index.json"
STORED = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp"}  # formats that a tar file may hold as they are, and their endings


class Shard(TypedDict):
    """A complete tar file: its name, its SHA-256 sum, how many images it holds, and those that could not be read."""

    file: str
    sha256: str
    images: AtLeastOne
    broken: list[str]


class Index(TypedDict):
    """The file `index.json`. `source` is a fingerprint of the files of each split."""

    size: Pixels
    quality: AtLeastOne
    shard_images: AtLeastOne
    classes: list[str]
    source: dict[str, str]
    images: dict[str, Count]
    shards: list[Shard]


def smaller(file: str | os.PathLike[str], size: int, quality: int) -> tuple[str, bytes]:
    """An image file whose shorter side is at most `size`: its ending and its bytes, which have been decoded once.

    What is small enough stays as it is, to the byte. Others are turned upright, resized bicubically and written as JPEG.

    Raises:
        ValueError: it cannot be read; the message names the file.
    """
    try:
        with open_picture(file) as image:
            kind, sides = STORED.get(image.format or ""), image.size
            pixels = as_rgb(image)  # here a broken file shows itself
        if kind is not None and min(sides) <= size:
            return kind, Path(file).read_bytes()
        return "jpg", _as_jpeg(_shrunk(pixels, size), quality)
    except Exception as error:  # a broken file makes decoders stumble in any way
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise ValueError(f"cannot read image {file}: {reason}") from error


def _shrunk(image: Image.Image, size: int) -> Image.Image:
    short = min(image.size)
    if short <= size:
        return image
    width, height = (max(size * side // short, 1) for side in image.size)  # rounds as torchvision's Resize
    return image.resize((width, height), Image.Resampling.BICUBIC)


def _as_jpeg(image: Image.Image, quality: int) -> bytes:
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def write_shard(
    path: Path, files: Sequence[str], labels: Sequence[int], first: int, size: int, quality: int, tick: Callable[[], None]
) -> Shard:
    """One tar file, which appears when it is complete. Sample `first` is the first of its files; `tick` is called for each."""
    broken, images = [], 0
    with replacing(path) as temporary:
        with tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as tar:
            for number, (file, label) in enumerate(zip(files, labels, strict=True), first):
                try:
                    kind, content = smaller(file, size, quality)
                except ValueError as error:
                    broken.append(str(error))
                else:
                    _add(tar, f"{number:08}.{kind}", content)
                    _add(tar, f"{number:08}.cls", b"%d" % label)
                    images += 1
                tick()
        if not images:
            raise ValueError(f"none of the {len(files)} images for {path} can be read; the first: {broken[0]}")
        return {"file": path.name, "sha256": checksum(temporary), "images": images, "broken": broken}


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)  # time 0 and no owner: the same bytes whoever packs, and when
    member.size = len(content)
    tar.addfile(member, BytesIO(content))


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
