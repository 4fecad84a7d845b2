"""Files of ListOps: both formats that are about, and ours, which is the arena's with a manifest beside it.

    the arena's      a line `Source TAB Target` on top, then expression TAB label, lines ending with CR LF
    the original's   label TAB expression, no line on top, lines ending with LF

A line that does not fit is an error with the file and the line; none is left out.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...common.files import write_bytes, write_json
from ..sequences import SequenceSplit
from .generate import Distribution
from .grammar import CLOSE, DIGITS, FIRST_OPERATOR, binary_text, evaluate, shown, tokenise

HEADER = "Source\tTarget"
MANIFEST = "manifest.json"


def read_file(path: Path, room: int, *, check_labels: bool = False) -> SequenceSplit:
    """All rows of a file, of at most `room` tokens.

    With `check_labels` each label is compared with the value of its expression, which takes a while.

    Raises:
        ValueError: a file without rows, or a row that is not one, with its line.
    """
    sequences, labels = list[bytes](), list[int]()
    for number, source, target in _rows(path):
        try:
            sequences.append(_tokens(source, room))
            labels.append(_label(target))
            if check_labels and (value := evaluate(sequences[-1])) != labels[-1]:
                raise ValueError(f"the label is {labels[-1]}, but the expression's value is {value}")
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
    if not sequences:
        raise ValueError(f"{path}: there are no rows")
    return SequenceSplit.of(sequences, labels)


def _rows(path: Path) -> Iterator[tuple[int, str, str]]:
    """(line, expression, label) of each row."""
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: this is no text ({error})") from error
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()  # behind the end of the last line
    label_first: bool | None = None
    for number, line in enumerate(lines, start=1):
        line = line.removesuffix("\r")
        if number == 1 and line == HEADER:
            label_first = False
            continue
        columns = line.split("\t")
        if len(columns) != 2:
            raise ValueError(f"{path}:{number}: {len(columns)} columns instead of an expression, a tab and a label")
        if label_first is None:  # the first row tells; if both columns are a digit they are the same
            label_first = _is_digit(columns[0])
        yield number, columns[label_first], columns[not label_first]


def _is_digit(word: str) -> bool:
    return len(word) == 1 and word in "0123456789"


def _label(word: str) -> int:
    if not _is_digit(word):
        raise ValueError(f"the label is {shown(word)}; labels are 0 to {DIGITS - 1}")
    return int(word)


def _tokens(source: str, room: int) -> bytes:
    tokens = bytes(tokenise(source))
    if len(tokens) > room:
        raise ValueError(f"{len(tokens)} tokens, but there is room for {room}; raise --loading.options.max_length and pad_to")
    if not _well_formed(tokens):
        evaluate(tokens)  # says what is wrong
    return tokens


def _well_formed(tokens: bytes) -> bool:
    """Whether this is one expression, without computing its value: twenty times as fast."""
    ids = np.frombuffer(tokens, np.uint8)
    opens, closes = (ids >= FIRST_OPERATOR) & (ids < CLOSE), ids == CLOSE
    depth = np.cumsum(opens.astype(np.int64) - closes)
    if len(ids) < 2:
        return len(ids) == 1 and not opens[0] and not closes[0]
    return bool(depth[-1] == 0 and depth[:-1].min() > 0 and not (opens[:-1] & closes[1:]).any())


def file_of(directory: Path, split: str) -> Path | None:
    """The arena's name, or the only .tsv with the split in its name; ValueError if several have it."""
    if (usual := directory / f"basic_{split}.tsv").is_file():
        return usual
    found = sorted(file for file in directory.glob("*.tsv") if split in file.stem)
    if len(found) > 1:
        raise ValueError(f"{directory}: {found[0].name} and {found[1].name} could both be the split {split}; leave one there")
    return found[0] if found else None


def write_files(directory: Path, splits: Mapping[str, SequenceSplit], distribution: Distribution) -> None:
    """The arena's format, and a manifest; the manifest comes last and says that the files are whole."""
    files: dict[str, Any] = {}
    for name, split in splits.items():
        rows = [f"{binary_text(split[row])}\t{int(split.labels[row])}" for row in range(len(split))]
        content = "".join(f"{line}\r\n" for line in (HEADER, *rows)).encode()
        histogram = split.labels.bincount(minlength=DIGITS).tolist()
        file = f"basic_{name}.tsv"
        files[file] = {"rows": len(split), "sha256": hashlib.sha256(content).hexdigest(), "labels": histogram}
        write_bytes(directory / file, content)
    write_json(directory / MANIFEST, {"generator": distribution.describe(), "files": files})


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """What generated files say about themselves, compared with the files; None for files of another origin."""
    path = directory / MANIFEST
    if not path.is_file():
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        known = {name: entry["sha256"] for name, entry in manifest["files"].items()}
        manifest["generator"]["seed"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} does not describe files of ListOps ({type(error).__name__}: {error}); remove it") from error
    for name, digest in known.items():
        file = directory / name
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            what = "is not the file" if file.is_file() else "is missing, one of the files"
            raise ValueError(f"{file} {what} that {path.name} describes; generate them again, or remove {path.name}")
    return manifest
