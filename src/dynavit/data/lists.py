"""Images named in text files, a `path label` on each line."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import torch

from .config import DataConfig
from .dataset import DataSet, FileSplit
from .folder import photo_data_set

CHECKED = 1000  # paths looked up while opening; on a network drive a million would take long


def open_lists(data_dir: Path | None, config: DataConfig) -> DataSet:
    """Text files with `path label` lines, train_list and val_list.

    The label is the last word of a line and counts from 0; the path before it may hold spaces and is relative to the root:
    `train_root` or `val_root`, else `data_dir`, else the folder of the list. Empty lines and those that begin with # are
    skipped. Only the first paths are looked up here; a later one that leads nowhere is found when it is read.
    """
    wanted = {"train": (config.train_root, config.train_list), "val": (config.val_root, config.val_list)}
    splits, lines = {}, {}
    for split, (root, file) in wanted.items():
        if file is not None:
            splits[split], lines[split] = read_list(file, root or data_dir or file.parent)
    if not splits:
        raise ValueError(
            "data list needs loading.train_list, or loading.val_list for evaluation: files with `path label` lines"
        )

    first = next(iter(splits))
    used = splits[first].labels.unique()
    classes = int(used[-1]) + 1
    if len(used) < classes:
        gap = int((used != torch.arange(len(used))).nonzero()[0])
        raise ValueError(f"{wanted[first][1]}: labels go up to {classes - 1}, but no image has label {gap}; leave no gaps")
    for split, listed in splits.items():
        if len(beyond := (listed.labels >= classes).nonzero()):
            where, label = lines[split][int(beyond[0])], int(listed.labels[beyond[0]])
            raise ValueError(f"{wanted[split][1]}:{where}: label {label}, but those of {first} are 0 to {classes - 1}")
    return photo_data_set("list", splits, [str(label) for label in range(classes)], config)


def read_list(file: Path, root: Path) -> tuple[FileSplit, list[int]]:
    """The images, and the line that each comes from."""
    paths: list[str] = []
    labels, lines = [], []
    for line, path, label in _entries(file):
        full = os.path.join(root, path)  # noqa: PTH118  (six times as fast as Path, which counts for a million)
        if len(paths) < CHECKED and not Path(full).is_file():
            raise ValueError(f"{file}:{line}: there is no image {full}; paths are relative to {root}")
        paths.append(full)
        labels.append(label)
        lines.append(line)
    if not paths:
        raise ValueError(f"{file}: names no images; expected a `path label` on each line")
    return FileSplit(paths, torch.tensor(labels)), lines


def _entries(file: Path) -> Iterator[tuple[int, str, int]]:
    if not file.is_file():
        raise ValueError(f"data list: there is no file {file}")
    try:
        text = file.read_text(encoding="utf-8-sig")  # some editors put a mark in front
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: is not text in UTF-8 ({error.reason} at byte {error.start})") from error
    for line, content in enumerate(text.split("\n"), start=1):
        content = content.strip()
        if not content or content.startswith("#"):
            continue
        words = content.rsplit(maxsplit=1)
        if len(words) != 2 or not re.fullmatch("[0-9]{1,9}", words[1]):
            raise ValueError(f"{file}:{line}: expected `path label`, the label a number from 0 on, but found {content!r}")
        yield line, words[0], int(words[1])
