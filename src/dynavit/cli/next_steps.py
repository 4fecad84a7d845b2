"""What to do after a command: a few commands, ready to be copied, on stderr, so that results on stdout can be piped."""

import shlex
import sys
from os import PathLike


def tell_next(*commands: "tuple[list[str | PathLike[str]], str]", quiet: bool = False) -> None:
    """Show each command, its words quoted for a shell, with a few words about it."""
    if quiet or not commands:
        return
    lines = [(shlex.join(["dynavit", *map(str, words)]), about) for words, about in commands]
    width = max(len(command) for command, _ in lines)
    print("next:", file=sys.stderr)
    for command, about in lines:
        print(f"  {command:<{width}}  # {about}", file=sys.stderr)
