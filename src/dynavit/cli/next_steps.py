"""What to do after a command: a few commands, ready to be copied, on stderr, so that results on stdout can be piped."""

import shlex
import sys
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..common.task import Task

Step = tuple[list[str | PathLike[str]], str]  # the words of a command behind `dynavit`, and a few words about it
COLUMNS = 80


def taken_by(task: "type[Task] | None", steps: Sequence[Step]) -> list[Step]:
    """The steps whose commands take runs of the task; all of them if it is not known."""
    from ..common.task import Task

    if task is None:
        return list(steps)

    def has(method: str) -> bool:
        """Its own, and not the one that refuses."""
        own, refuses = (getattr(each, method) for each in (task, Task))
        return getattr(own, "__func__", own) is not getattr(refuses, "__func__", refuses)

    takes = {"predict": has("answer"), "robust": has("error_of"), "analyze": task.things == "images"}
    return [step for step in steps if takes.get(str(step[0][0]), True)]


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
