"""The page of every command, made of its own help, so that it cannot go stale."""

import contextlib
import io
import os
import re

from dynavit.cli.main import COMMANDS, Group, main

_OPTION = re.compile(r"^  (-\S.*?)(?:  +(.*))?$")
_CODE = re.compile(r"`[^`]*`")


def command_pages() -> dict[str, str]:
    os.environ["COLUMNS"] = "100"  # width of the help
    pages = {"reference/commands/index.md": f"# All commands\n\n```text\n{_printed(['--help'])}```\n"}
    for name, command in COMMANDS.items():
        calls = [[name, word] for word in command.members] if isinstance(command, Group) else [[name]]
        text = [f"# {name}", ""]
        for call in calls:
            title = [f"## {' '.join(call)}", ""] if len(calls) > 1 else []
            text += [*title, as_tables(_printed([*call, "--help"])), ""]
        pages[f"reference/commands/{name}.md"] = "\n".join(text)
    return pages


def as_tables(text: str) -> str:
    """The help of a command as Markdown: a paragraph for each of prose, a table for each group of options."""
    usage, _, rest = text.partition("\n\n")
    lines = [f"```text\n{usage}\n```", ""]
    row: list[str] | None = None
    table = False
    for line in [*rest.splitlines(), ""]:
        found = _OPTION.match(line)
        if row is not None and (found or not line.startswith("    ")):
            lines.append(f"| `{_plain(row[0])}` | {_cell(' '.join(row[1:]))} |")
            row = None
        if found:
            lines += [] if table else ["| option | |", "|---|---|"]
            row, table = [found[1], found[2] or ""], True
        elif row is not None:
            row.append(line.strip())
        else:
            lines += (
                ["", f"**{line.rstrip(':').capitalize()}**", ""] if line.endswith(":") and not line.startswith(" ") else [line]
            )
            table = False
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Text of a table's cell, with placeholders such as <name> and bars kept from being read as markup."""
    parts = [part if _CODE.fullmatch(part) else part.replace("<", "&lt;") for part in re.split(r"(`[^`]*`)", _plain(text))]
    return "".join(parts).replace("|", r"\|")


def _plain(text: str) -> str:
    return re.sub(r"[\x00-\x1f]", "", text).strip()


def _printed(words: list[str]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(words)
    if code:
        raise ValueError(f"dynavit {' '.join(words)} ended with {code}")
    return out.getvalue().rstrip() + "\n"
