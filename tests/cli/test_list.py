import json
import re

import pytest

import dynavit
from dynavit.cli import show
from dynavit.cli.list import norm_rows
from dynavit.cli.main import main
from dynavit.cli.recipes import list_recipes


def test_every_registered_norm_has_a_row():
    rows = {row.name: row for row in norm_rows()}
    assert list(rows) == dynavit.list_norms()
    assert rows["ln"].parameters == 2 * 192
    assert rows["ln"].options == {}
    assert rows["rms"].parameters == 192
    assert rows["in"].options == {"unbiased": False}
    for row in rows.values():
        assert row.description, f"{row.name} has no docstring"
        assert "eps" not in row.options


def test_json_holds_the_same(capsys):
    assert main(["list", "norms", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == dynavit.list_norms()
    assert {row["name"]: row["parameters"] for row in rows} == {row.name: row.parameters for row in norm_rows()}


def test_in_a_pipe_the_table_is_plain_and_complete(capsys):
    assert main(["list", "norms"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "│" not in out
    for row in norm_rows():
        (line,) = [line for line in out.splitlines() if line.split()[:1] == [row.name]]
        assert row.description in line
        assert line.endswith(f"{row.parameters:,}")


def test_at_a_terminal_the_table_is_drawn(capsys, monkeypatch):
    monkeypatch.setattr(show.sys.stdout, "isatty", lambda: True, raising=False)
    assert main(["list", "norms"]) == 0
    out = capsys.readouterr().out
    assert "│" in out
    for name in dynavit.list_norms():
        assert name in out


def test_square_brackets_are_text_not_markup(capsys, monkeypatch):
    monkeypatch.setattr(show.sys.stdout, "isatty", lambda: True, raising=False)
    show.print_table("t", ["a"], [["[red]x[/red]"], ["[1, 2]"]])
    out = capsys.readouterr().out
    assert "[red]x[/red]" in out
    assert "[1, 2]" in out


@pytest.mark.parametrize(
    ("cells", "right"),
    [(["1.0x", "12,480"], True), (["-", "3"], True), (["~4", "<0.1"], True), (["ln", "3"], False), (["3", "n/a"], False)],
)
def test_columns_of_numbers_are_aligned_right(cells, right):
    assert show._number_columns(["h"], [[cell] for cell in cells]) == [right]


def test_data_sets(capsys):
    from dynavit.data.open import list_data

    assert main(["list", "data"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, about in list_data().items():
        assert [name, about] in [line.split(maxsplit=1) for line in lines]
    assert main(["list", "data", "--json"]) == 0
    assert {row["name"]: row["description"] for row in json.loads(capsys.readouterr().out)} == list_data()


def test_recipes(capsys):
    assert main(["list", "recipes"]) == 0
    out = capsys.readouterr().out
    assert main(["list", "recipes", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["quickstart"]["command"] == "dynavit compare --config quickstart --out runs/quickstart"
    entries = {entry.splitlines()[0]: entry for entry in out.strip().split("\n\n")}
    assert entries.keys() == rows.keys()
    for name, row in rows.items():
        _, *lines, command = [line.strip() for line in entries[name].splitlines()]
        assert command == row["command"]
        assert lines == [row["what"], f"cost: {row['cost']}", f"reached: {row['reached']}"]


def test_names_and_commands_are_whole_at_80_columns(capsys, monkeypatch):
    """A terminal cuts nothing, so that both can be copied."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(show.sys.stdout, "isatty", lambda: True, raising=False)
    assert main(["list", "recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for recipe in list_recipes():
        assert recipe.name in lines and f"  {recipe.command}" in lines
    commands = {f"  {recipe.command}" for recipe in list_recipes()}
    assert max(len(line) for line in lines if line not in commands) <= 80
    for what in (["models", "--pattern", "vit_*_star"], ["norms"], ["data"], ["tasks"]):
        assert main(["list", *what, "--json"]) == 0
        names = [row["name"] for row in json.loads(capsys.readouterr().out)]
        assert main(["list", *what]) == 0
        shown = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
        assert "…" not in shown and max(map(len, shown.splitlines())) <= 80
        for name in names:
            assert f" {name} " in shown
