"""Open ListOps: short expressions made on the spot, or the files of a folder."""

from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ..config import DataConfig
from ..sequences import SequenceData, SequenceSplit
from ..splits import cut_validation
from .files import file_of, read_file, read_manifest, write_files
from .generate import Distribution, generate
from .grammar import DIGITS, TOKENS, evaluate
from .ladder import ladder

SPLITS = ("test", "val", "train")  # in the order they are generated: the test split does not depend on the others' sizes
SHORT = 200  # tokens of expressions that are made, unless another length is asked for
LONGEST_IN_FILES = 2000  # the arena's


def open_listops(
    data_dir: Path | None,
    config: DataConfig,
    *,
    train: int = 20_000,
    val: int = 2_000,
    test: int = 10_000,
    min_length: int = 50,
    max_length: int | None = None,
    max_depth: int = 5,
    max_args: int = 10,
    p_operator: float = 0.25,
    seed: int = 0,
    pad_to: int | None = None,
) -> "ListOpsData":
    """ListOps: short expressions made here, or files of the Long Range Arena

    With --download and a folder that holds none yet, what is made is also written there, in the arena's format.

    Args:
        train, val, test: expressions of each split that are made; test is the same whatever the others are.
        min_length, max_depth, max_args, p_operator, seed: see `generate.Distribution`.
        max_length: made expressions are shorter than that (200 if not given); those of files are at most so long (2,000).
        pad_to: tokens of a padded row; max_length if not given.
    """
    if config.image_size is not None:
        raise ValueError("listops: image_size is about images; leave it out")
    sizes = {"test": test, "val": val, "train": train}
    width, notes = max_length or SHORT, list[str]()
    writes = data_dir is not None and config.download and not _has_files(data_dir)
    if data_dir is None or writes:
        distribution = Distribution(min_length, width, max_depth, max_args, p_operator, seed)
        splits = generate_splits(sizes, distribution)
    if data_dir is not None and writes:
        write_files(data_dir, splits, distribution)
        notes.append(f"wrote {', '.join(f'{size} {name}' for name, size in sizes.items())} rows to {data_dir}")
    elif data_dir is not None:
        splits, width = _read(data_dir, config, max_length, pad_to)
    splits, more = _arranged(splits, config)
    return ListOpsData(
        "listops",
        splits,
        [str(digit) for digit in range(DIGITS)],
        TOKENS,
        width if pad_to is None else pad_to,
        task="listops",
        model="sequence_micro",
        notes=(*notes, *more),
    )


class ListOpsData(SequenceData):
    """Sequences that know what an accuracy on them means."""

    @cached_property
    def ladder(self) -> list[dict[str, Any]]:
        """Of the training split, or without one of the first there is."""
        return ladder(self.splits["train"] if "train" in self.splits else next(iter(self.splits.values())))

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "ladder": self.ladder}


def generate_splits(sizes: dict[str, int], distribution: Distribution) -> dict[str, SequenceSplit]:
    """Splits of one stream of trees: no tree is in two of them."""
    for name, size in sizes.items():
        if size < (name == "train"):
            raise ValueError(f"listops: loading.options.{name}={size} is a number of expressions, and train is not 0")
    trees, splits = generate(sum(sizes.values()), distribution), {}
    for name in SPLITS:
        if sizes[name]:
            own = [next(trees) for _ in range(sizes[name])]
            splits[name] = SequenceSplit.of(own, [evaluate(tree) for tree in own])
    return splits


def _has_files(directory: Path) -> bool:
    return directory.is_dir() and any(file_of(directory, split) for split in SPLITS)


def _read(
    directory: Path, config: DataConfig, max_length: int | None, pad_to: int | None
) -> tuple[dict[str, SequenceSplit], int]:
    """The splits whose files are there, and the width of a row."""
    if not directory.is_dir():
        raise ValueError(f"listops: {directory} is no folder; leave --data-dir out to make expressions, or add --download")
    files = {split: file for split in SPLITS if (file := file_of(directory, split)) is not None}
    if not files:
        raise ValueError(
            f"listops: {directory} holds no .tsv file with train, val or test in its name, as basic_train.tsv; leave "
            "--data-dir out to make expressions, or add --download to write them there"
        )
    manifest = read_manifest(directory)
    given = {name: value for name, value in config.options.items() if name not in ("max_length", "pad_to")}
    _check_same_distribution(directory, given, manifest)
    made = manifest["generator"]["max_length"] if manifest else LONGEST_IN_FILES
    width = max_length or made
    room = width if pad_to is None else min(width, pad_to)
    return {split: read_file(file, room, check_labels=config.strict) for split, file in files.items()}, width


def _check_same_distribution(directory: Path, given: dict[str, Any], manifest: dict[str, Any] | None) -> None:
    """Options about how expressions are made may only repeat what the files were made with."""
    if not given:
        return
    if manifest is None:
        name = next(iter(given))
        raise ValueError(
            f"listops: loading.options.{name} is about expressions that are made here, but {directory} holds files of another "
            "origin; leave it out"
        )
    made = {field.name: manifest["generator"].get(field.name) for field in fields(Distribution)}
    made |= {split: manifest["files"].get(f"basic_{split}.tsv", {}).get("rows", 0) for split in SPLITS}
    for name, value in given.items():
        if made[name] != value:
            raise ValueError(f"listops: the files in {directory} were made with {name}={made[name]}, not {value}")


def _arranged(splits: dict[str, SequenceSplit], config: DataConfig) -> tuple[dict[str, SequenceSplit], list[str]]:
    """Validation cut from train if there is none, and train limited to its first rows: taking the same number of every class
    would make other data of it."""
    arranged, notes = dict(splits), list[str]()
    if "train" not in arranged:
        return arranged, notes
    if "val" not in arranged and config.val_fraction:
        kept, held = cut_validation(arranged["train"].labels, config.val_fraction, config.split_seed)
        notes.append(f"validation: {len(held)} of {len(kept) + len(held)} training rows, split_seed={config.split_seed}")
        arranged["train"], arranged["val"] = arranged["train"].subset(kept), arranged["train"].subset(held)
    if 0 < config.limit < len(arranged["train"]):
        notes.append(f"training uses the first {config.limit} of {len(arranged['train'])} rows")
        arranged["train"] = arranged["train"].subset(torch.arange(config.limit))
    return arranged, notes
