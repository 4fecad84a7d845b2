"""What to do after a command: a few commands, ready to be copied, on stderr, so that results on stdout can be piped."""

import shlex
import sys
from os import PathLike

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
