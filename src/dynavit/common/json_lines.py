"""A file with one JSON object on each line, of which some may be damaged."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def json_lines(file: Path) -> Iterator[dict[str, Any] | None]:
    """The objects, one at a time; None for a line that is none, such as one that was cut off and then written on.

    What stands behind the last line end is still being written, and left out. A file that is missing has no lines.
    """
    if not file.is_file():
        return
    with file.open("rb") as stream:
        for text in stream:
            if not text.endswith(b"\n"):
                return
            try:
                value = json.loads(text)
            except ValueError:
                value = None
            yield value if isinstance(value, dict) else None


def end_of_whole_lines(file: Path, size: int) -> int:
    """Where the last whole line ends among the first `size` bytes."""
    with file.open("rb") as stream:
        end = size
        while end > 0:
            start = max(end - 65536, 0)
            stream.seek(start)
            found = stream.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0
