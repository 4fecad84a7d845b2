"""What README, CONTRIBUTING and docs name is there: links, modules, files, commands and their options."""

import re
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

import dynavit
from documents import DOCUMENTS, ROOT, prose, quoted
from dynavit.cli.main import COMMANDS, Command, Group
from dynavit.cli.parse import _OWN_OPTIONS, _check_names, _normal_spelling, _option_types
from dynavit.common.registry import UnknownNameError

PACKAGE = Path(dynavit.__file__).parent
ROOMS = "|".join(sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"))


@pytest.fixture(params=DOCUMENTS)
def document(request):
    return DOCUMENTS[request.param]


def missing_links(text: str, directory: Path) -> list[str]:
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(text))
    return [target for target in targets if "://" not in target and not (directory / target.partition("#")[0]).exists()]


def missing_names(text: str) -> list[str]:
    return [name for name in re.findall(r"\bdynavit(?:\.[A-Za-z_]\w*)+", text) if not resolves(name)]


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or attributes of one."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[cut:]:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


def missing_files(text: str) -> list[str]:
    """Paths from the top of the repository, and modules and folders of the package by their room: `norms/contract.py`."""
    top = re.findall(r"(?<![\w./-])(?:benchmarks|docs|examples|src|tests)/[\w./-]*[\w/]", text)
    inside = [word for word in quoted(text) if re.fullmatch(rf"(?:{ROOMS})/(?:[\w/]*/|[\w/]*\.\w+)?", word)]
    inside = [word for word in inside if word.endswith(("/", ".py", ".c", ".h"))]
    return [name for name in top if not (ROOT / name).exists()] + [name for name in inside if not (PACKAGE / name).exists()]


def wrong_commands(text: str) -> list[str]:
    """Commands in backticks that do not exist or refuse an option, and options that every command refuses."""
    every = [function for command in COMMANDS.values() for function in members(command)]
    found = []
    for words in (word.split() for word in quoted(text)):
        options = [word for word in words if word.startswith("--")]
        if words[0] == "dynavit" and words[1:] not in ([], ["--help"], ["--version"]):
            meant = commands_meant(words[1:])
            found += [" ".join(words)] if not meant or any(refused(option, meant) for option in options) else []
        elif options and words[0] == options[0]:
            found += [option for option in options if refused(option, every)]
    return found


def members(command: Command | Group) -> list[Command]:
    return list(command.members.values()) if isinstance(command, Group) else [command]


def commands_meant(words: list[str]) -> list[Command]:
    """The functions that `dynavit WORDS...` may mean; all of a group if its name stands alone, none for an unknown command."""
    command = COMMANDS.get(words[0])
    if not isinstance(command, Group) or len(words) == 1:
        return members(command) if command is not None else []
    return [command.members[name] for name in (words[1], command.default) if name in command.members][:1]


def refused(option: str, functions: list[Command]) -> bool:
    """Whether none of the commands takes this option."""
    for function in functions:
        types = _option_types(function)
        with suppress(UnknownNameError):
            _check_names(_normal_spelling([option], types), [*types, *_OWN_OPTIONS])
            return False
    return True


def test_links_lead_somewhere(document):
    assert missing_links(document.read_text(), document.parent) == []


def test_names_of_the_package_resolve(document):
    assert missing_names(document.read_text()) == []


def test_files_are_there(document):
    assert missing_files(document.read_text()) == []


def test_commands_and_options_exist(document):
    assert wrong_commands(document.read_text()) == []


# ---- The checks can fail


def test_what_is_missing_is_found(tmp_path):
    (tmp_path / "there.md").touch()
    links = "[a](there.md) [b](there.md#part) [c](https://nowhere.invalid) [d](gone.md) ![e](gone.png)"
    assert missing_links(links, tmp_path) == ["gone.md", "gone.png"]
    names = "dynavit.load, `dynavit.runs.fold.fold_run(x)`, dynavit.ship, dynavit.runs.fold.fold_runs, dynavit.Norm.start_at"
    assert missing_names(names) == ["dynavit.ship", "dynavit.runs.fold.fold_runs"]
    files = "`norms/contract.py` `norms/` `norms/dtn_op.py` tests/conftest.py (tests/gone.py) `analysis/x.json` `deploy/ship/`"
    assert missing_files(files) == ["tests/gone.py", "norms/dtn_op.py", "deploy/ship/"]
    commands = (
        "`dynavit eval RUN --robust` `dynavit robust RUN --limit 5` `dynavit ship` `dynavit calibrate judge RUN --split val` "
        "`dynavit calibrate RUN --gmacs 1` `dynavit list nroms` `dynavit list` `--exit-weights` `--task.weights 1,2` "
        "`--model_options.depth 3` `--optim.clip 1` `--optim.clipp 1` `--no-steps` `--strict`"
    )
    assert wrong_commands(commands) == [
        "dynavit eval RUN --robust",
        "dynavit ship",
        "dynavit list nroms",
        "--exit-weights",
        "--optim.clipp",
    ]
