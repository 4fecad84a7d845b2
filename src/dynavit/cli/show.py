"""Tables on stdout, progress on stderr: rich at a terminal, plain text in a pipe or file."""

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ..common.labelled import labelled_lines


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if sys.stdout.isatty():
        _print_rich(title, header, rows)
    else:
        _print_plain(title, header, rows)


def print_entries(entries: Sequence[tuple[str, Sequence[str], str]]) -> None:
    """Entries of (name, lines of prose, command): names and commands are never broken, so that they can be copied."""
    wide = shutil.get_terminal_size().columns - 2 if sys.stdout.isatty() else None
    for name, prose, command in entries:
        print(name)
        for text in prose:
            for line in textwrap.wrap(text, wide, subsequent_indent="  ") if wide else [text]:
                print(f"  {line}")
        print(f"  {command}\n")


def print_overview(facts: Mapping[str, str]) -> None:
    """What a command is about, on stderr, so that its results can be piped."""
    for line in labelled_lines(facts):
        print(line, file=sys.stderr)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A function that shows what is being done now: a moving line at a terminal, one line each elsewhere."""
    if not sys.stderr.isatty():
        yield lambda message: print(message, file=sys.stderr, flush=True)
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        yield status.update


def _print_rich(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left", title_style="bold")
    for at, (name, number) in enumerate(zip(header, _number_columns(header, rows), strict=True)):
        # What stands first is a name, which is to be copied; the rest is broken into lines, and nothing is cut.
        table.add_column(escape(name), justify="right" if number else "left", no_wrap=at == 0 or number, overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    Console().print(table)


def _print_plain(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns, two spaces between them, nothing cut: for reading in a log and for `awk`."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    numbers = _number_columns(header, rows)
    print(title)
    for line in lines:
        cells = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, numbers, strict=True)
        )
        print("  ".join(cells).rstrip())
    print()


def _number_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Columns whose every cell starts like a number (`1.3x`, `12,480`) or is empty or a dash."""
    return [bool(rows) and all(_like_a_number(row[column]) for row in rows) for column in range(len(header))]


def _like_a_number(cell: str) -> bool:
    return cell.strip("-– ") == "" or cell.lstrip("+-−<≤~ ")[:1].isdigit()
