"""The manners of the command line: help that teaches, one clear line for a mistake, exit codes."""

import inspect
import subprocess
import sys

import pytest

from dynavit.cli import main as cli
from dynavit.cli.main import COMMANDS, EXAMPLES, Group, main


@pytest.fixture
def run(capsys):
    """(exit code, stdout, stderr) of one call."""

    def run(*words):
        code = main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def functions():
    for name, command in COMMANDS.items():
        members = command.members.items() if isinstance(command, Group) else [("", command)]
        yield from ((f"{name} {member}".strip(), function) for member, function in members)


def test_commands_and_options_change_only_on_purpose():
    frozen = {
        "list norms": ["json"],
        "list models": ["pattern", "json"],
        "bench norms": ["norms", "shapes", "repeats", "sweep", "threads", "out"],
        "convert": ["model", "norm", "where", "site", "depth", "start", "input_size", "num_classes", "causal", "json"],
        "bench models": ["models", "sizes", "steps", "repeats", "batch", "img_size", "threads", "out"],
    }
    assert {name: list(inspect.signature(function).parameters) for name, function in functions()} == frozen


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_help_names_every_command_and_shows_examples(run, words):
    code, out, err = run(*words)
    assert code == 0
    assert err == ""
    assert EXAMPLES in out
    for name, function in functions():
        assert f"  {name}  " in out
        assert inspect.getdoc(function).splitlines()[0] in out


def test_every_example_is_a_command_with_options_that_exist(monkeypatch, tmp_path):
    """The examples are parsed (not run): the functions behind them are replaced by ones that take the same arguments."""
    called = []

    def recorder(name, function):
        def record(**options):
            called.append((name, options))

        record.__signature__ = inspect.signature(function)
        record.__doc__ = function.__doc__
        record.__annotations__ = function.__annotations__
        return record

    recorders = {name: recorder(name, function) for name, function in functions()}
    for name, command in COMMANDS.items():
        if not isinstance(command, Group):
            monkeypatch.setitem(COMMANDS, name, recorders[name])
            continue
        members = {member: recorders[f"{name} {member}"] for member in command.members}
        monkeypatch.setitem(COMMANDS, name, Group(command.about, command.noun, members))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bench.yaml").write_text("repeats: 7\nsweep: false\n")
    # the command, up to the gap before its explanation or the redirection
    examples = [
        line.split("   ")[0].split(">")[0].split()[1:] for line in EXAMPLES.splitlines() if line.startswith("  dynavit")
    ]
    assert len(examples) == 10
    for words in examples:
        assert main(words) == 0, words
    assert len(called) == len(examples) - 1  # --print_config calls nothing
    assert called[-1][1]["repeats"] == 5
    assert called[-1][1]["sweep"] is False


def test_version(run):
    from importlib.metadata import version

    assert run("--version") == (0, f"dynavit {version('dynavit')}\n", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lst"], "dynavit: unknown command 'lst'. Did you mean 'list'? Known: bench, convert, list\n"),
        (["list", "nroms"], "dynavit: unknown thing to list 'nroms'. Did you mean 'norms'? Known: models, norms\n"),
        (["bench", "norm"], "dynavit: unknown benchmark 'norm'. Did you mean 'norms'? Known: models, norms\n"),
        (["list"], "dynavit: 'dynavit list' needs a thing to list: norms, models\n"),
        (["bench", "--repeats", "3"], "dynavit: 'dynavit bench' needs a benchmark: norms, models\n"),
        (["--repeats", "3"], "dynavit: the command comes first, got '--repeats'. Commands: list, bench, convert\n"),
    ],
)
def test_a_wrong_word_gets_one_line_and_exit_code_2(run, words, message):
    assert run(*words) == (2, "", message)


@pytest.mark.parametrize("error", [ValueError("first line\n   second"), FileNotFoundError("first line second")])
def test_errors_of_the_library_are_one_line(run, monkeypatch, error):
    def broken(json: bool = False) -> None:
        raise error

    monkeypatch.setitem(COMMANDS, "broken", broken)
    assert run("broken") == (2, "", "dynavit: first line second\n")
    monkeypatch.setenv("DYNAVIT_DEBUG", "1")
    with pytest.raises(type(error)):
        main(["broken"])


def test_our_own_mistakes_keep_their_traceback(monkeypatch):
    def broken() -> None:
        raise KeyError("a bug")

    monkeypatch.setitem(COMMANDS, "broken", broken)
    with pytest.raises(KeyError):
        main(["broken"])


def test_interruption(run, monkeypatch):
    def stopped() -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, "stopped", stopped)
    assert run("stopped") == (130, "", "dynavit: interrupted\n")


def test_group_help(run):
    code, out, _ = run("bench", "--help")
    assert code == 0
    assert "bench norms   Measure every normaliser" in out


def test_python_dash_m():
    done = subprocess.run([sys.executable, "-m", "dynavit", "lst"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dynavit: unknown command 'lst'.")


def test_a_reader_that_leaves_is_no_error():
    # The help is longer than nothing, and nobody reads it: the pipe is closed before Python starts to write.
    command = [sys.executable, "-m", "dynavit", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        error = process.stderr.read()
    assert (process.returncode, error) == (0, "")


def test_the_entry_point_is_this_function():
    from importlib.metadata import entry_points

    (entry,) = entry_points(group="console_scripts", name="dynavit")
    assert entry.load() is cli.main
