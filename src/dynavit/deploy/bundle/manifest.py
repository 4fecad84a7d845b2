"""manifest.json: metadata of a bundle, and sizes and checksums of its files.

bundle/  manifest.json  model.onnx | model.pt2          a classifier
                        exit0.onnx, exit1.onnx, ...     a cascade, one file for each exit
                        early_exit.onnx                 a cascade that stops by itself, one image at a time
                        model.int8.onnx                 the classifier with 8-bit weights
                        policy.json                     thresholds of a cascade's exits
"""

import hashlib
import re
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from ...common.files import read_json, write_json
from ...common.fits import AtLeastOne
from ...common.owned import Names, names
from ...common.stored_shapes import StoredFile, check_preprocess

MANIFEST = "manifest.json"
FORMAT = "dynavit bundle 1"


class Int8(TypedDict):
    """The 8-bit model of a bundle."""

    file: str


class Format(TypedDict):
    """The part of a manifest that every version has."""

    format: str


class Manifest(Format):
    """The facts that are needed to run a bundle; there are more."""

    backend: str
    parts: list[str]
    classes: list[str]
    input: tuple[AtLeastOne, AtLeastOne, AtLeastOne]
    files: dict[str, StoredFile]
    preprocess: NotRequired[dict[str, Any]]
    int8: NotRequired[Int8]


def is_bundle(path: Path) -> bool:
    """Whether this directory claims to be a bundle. Its files may still be damaged: `read_manifest` finds out."""
    try:
        return read_json(path / MANIFEST, Format)["format"].startswith("dynavit bundle")
    except (OSError, ValueError):
        return False


def names_in_bundle(path: Path) -> Names | None:
    """The files that the manifest of a bundle lists, and itself; None if this is no bundle."""
    if not is_bundle(path):
        return None
    files = read_json(path / MANIFEST).get("files")
    listed = files if isinstance(files, dict) else {}
    return names(*map(re.escape, (MANIFEST, *listed)))


def write_manifest(directory: Path, facts: dict[str, Any]) -> None:
    """The facts, and size and SHA-256 of every file that is there now."""
    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": sha256(file)}
        for file in sorted(directory.iterdir())
        if file.is_file()
    }
    write_json(directory / MANIFEST, {"format": FORMAT, **facts, "files": files})


def read_manifest(directory: Path) -> dict[str, Any]:
    """The facts, after comparing every file with its checksum. Nothing else of the bundle has been read before."""
    path = directory / MANIFEST
    if not path.is_file():
        what = (
            "is not a directory" if not directory.is_dir() else f"has no {MANIFEST}, so it is not a bundle of `dynavit export`"
        )
        raise ValueError(f"{directory} {what}")
    kind = read_json(path, Format)["format"]
    if kind != FORMAT:
        raise ValueError(f"{path} describes {kind!r}, this version reads {FORMAT!r}; export the run again")
    manifest = read_json(path, Manifest)
    try:
        if "preprocess" in manifest:
            check_preprocess(manifest["preprocess"])
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    files = {name: (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
    for name, (size, digest) in files.items():
        file = directory / name
        if Path(name).name != name or file.is_symlink():
            raise ValueError(f"{path} names {name!r}; a bundle consists of plain files in its own directory, without links")
        if not file.is_file():
            raise ValueError(f"{file} is missing from the bundle; export the run again, or copy the whole directory")
        if file.stat().st_size != size:
            raise ValueError(f"{file} has {file.stat().st_size} bytes, the manifest says {size}: truncated or replaced")
        if sha256(file) != digest:
            raise ValueError(f"{file} was altered: its SHA-256 is not the manifest's")
    return manifest


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
