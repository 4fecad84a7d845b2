"""The page of every command, made of its own help, so that it cannot go stale."""

import contextlib
import io
import os
import re
import textwrap

from dynavit.cli.main import COMMANDS, EXAMPLES, Group, main
from dynavit.cli.parse import first_line

_OPTION = re.compile(r"^  (-\S.*?)(?:  +(.*))?$")
_CODE = re.compile(r"`[^`]*`")


def command_pages() -> dict[str, str]:
    os.environ["COLUMNS"] = "100"  # width of the help
    rows = ["# All commands", "", "| command | |", "|---|---|"]
    pages = {}
    for name, command in COMMANDS.items():
        text, calls = [f"# {name}", ""], {name: command}
        if isinstance(command, Group):
            what, _, how = command.about.partition("\n\n")
            text += [what, "", *([f"```text\n{textwrap.dedent(how)}\n```", ""] if how else [])]
            calls = {f"{name} {word}": inside for word, inside in command.members.items()}
        for call, function in calls.items():
            anchor = f"#{call.replace(' ', '-')}" if len(calls) > 1 else ""
            rows.append(f"| [{call}]({name}.md{anchor}) | {_cell(first_line(function))} |")
            title = [f"## {call}", ""] if len(calls) > 1 else []
            text += [*title, as_tables(_printed([*call.split(), "--help"])), ""]
        pages[f"reference/commands/{name}.md"] = "\n".join(text)
    examples, _, notes = EXAMPLES.partition("\n\n")
    rows += ["", "## Examples", "", f"```text\n{_below_their_words(examples)}\n```", "", notes, ""]
    return pages | {"reference/commands/index.md": "\n".join(rows)}


def as_tables(text: str) -> str:
    """The help of a command as Markdown: a paragraph for each of prose, a table for each group of options."""
    usage, _, rest = text.partition("\n\n")
    lines = [f"```text\n{usage}\n```", ""]
    row: list[str] | None = None
    table = code = False
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
            if line.startswith("  ") != code:  # examples among the prose
                code = not code
                lines.append("```text" if code else "```")
            heading = line.endswith(":") and not line.startswith(" ")
            lines += ["", f"**{line.rstrip(':').capitalize()}**", ""] if heading else [line]
            table = False
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Text of a table's cell, with placeholders such as <name> and bars kept from being read as markup."""
    parts = [part if _CODE.fullmatch(part) else part.replace("<", "&lt;") for part in re.split(r"(`[^`]*`)", _plain(text))]
    return "".join(parts).replace("|", r"\|")


def _plain(text: str) -> str:
    return re.sub(r"[\x00-\x1f]", "", text).strip()


def _below_their_words(examples: str) -> str:
    """Each example below what it does, since the two side by side are wider than a page."""
    rows = [re.split(r"  +", line.strip(), maxsplit=1) for line in examples.splitlines()[1:]]
    return "\n".join("\n".join([*(f"# {about}" for about in said), call]) for call, *said in rows)


def _printed(words: list[str]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(words)
    if code:
        raise ValueError(f"dynavit {' '.join(words)} ended with {code}")
    return out.getvalue().rstrip() + "\n"
