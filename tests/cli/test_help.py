"""`--help` of every command: each option described, in plain words."""

import re

import pytest

from cli.test_main import functions
from dynavit.cli.main import main

INDENT = 24  # of descriptions in argparse's help


def options(text):
    """{option: its description} as shown, types and defaults left out."""
    entries: dict[str, str] = {}
    name = ""
    for line in text.partition("options:")[2].splitlines():
        if found := re.match(r"  (-\S+.*?)(?:  +(.*))?$", line):
            name = found[1]
            entries[name] = found[2] or ""
        elif line.startswith(" " * INDENT):
            entries[name] += f" {line.strip()}"
    return {name: re.sub(r"\((?:required|type|default)\b.*\)$", "", about).strip() for name, about in entries.items()}


@pytest.mark.parametrize("command", [name for name, _ in functions()])
def test_every_option_is_described_in_plain_words(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert "<class" not in text and "Optional[" not in text and "Literal[" not in text
    assert not re.search(r"--[\w.]+\+", text), "additions to lists are jsonargparse's own"
    found = options(text)
    assert len(found) >= 4  # help, config, print_config, plugin
    assert {name: about for name, about in found.items() if not re.search(r"[a-z]{2,}", about, re.IGNORECASE)} == {}


def test_switches_are_written_as_they_are_given(capsys):
    assert main(["bench", "norms", "--help"]) == 0
    shown = options(capsys.readouterr().out)
    assert "--sweep, --no-sweep" in shown
    assert main(["eval", "--help"]) == 0
    assert {"--json", "-h, --help"} < set(options(capsys.readouterr().out))


def test_a_group_alone_explains_itself(run):
    code, out, _ = run("calibrate")
    assert code == 0
    assert "dynavit calibrate runs/dvt --accuracy 0.95" in out and "calibrate search" in out
