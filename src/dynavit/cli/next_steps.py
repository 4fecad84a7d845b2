"""What to do after a command: a few commands, ready to be copied, on stderr, so that results on stdout can be piped."""

import shlex
import sys
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

Step = tuple[list[str | PathLike[str]], str]  # the words of a command behind `dynavit`, and a few words about it
COLUMNS = 80


def tell_next(*steps: Step, quiet: bool = False) -> None:
    """Show commands, quoted for a shell; words about them stand behind where all lines fit, otherwise above."""
    if quiet or not steps:
        return
    lines = [(shlex.join(["dynavit", *map(str, words)]), about) for words, about in steps]
    width = max(len(command) for command, _ in lines)
    behind = all(2 + width + 4 + len(about) <= COLUMNS for _, about in lines)
    print("next:", file=sys.stderr)
    for command, about in lines:
        print(f"  {command:<{width}}  # {about}" if behind else f"  # {about}\n  {command}", file=sys.stderr)


def robust_step(runs: Sequence[Path], about: str = "errors on corrupted images") -> list[Step]:
    """`dynavit robust` of runs or comparisons, if their models take images of one size: of others it has no corruptions."""
    from ..runs.directory import RunDirectory
    from ..runs.model_files import ModelCard

    for place in (place for run in runs for place in (run, *sorted(run.glob("*/")))):
        if RunDirectory(place).card_file.is_file():
            return [(["robust", *runs], about)] if ModelCard.read(place).preprocess else []
    return []
