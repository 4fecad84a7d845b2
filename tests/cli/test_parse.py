"""Options: one spelling in Python, forgiving ones on the command line, the same in a file."""

from pathlib import Path

import pytest

from dynavit.cli.parse import parse_options


def train(
    data_dir: Path = Path("data"),
    epochs: int = 3,
    names: list[str] | str | None = None,
    ema: bool = False,
    augment: bool = True,
) -> None:
    """Train something.

    A second paragraph.

    Args:
        data_dir: where the images are.
        epochs: how long.
    """


def parse(*words):
    return parse_options(train, words, prog="dynavit train")


DEFAULTS = {"data_dir": Path("data"), "epochs": 3, "names": None, "ema": False, "augment": True}


def test_defaults_come_from_the_signature():
    assert parse() == DEFAULTS


@pytest.mark.parametrize("words", [["--data-dir", "x-y"], ["--data_dir", "x-y"], ["--data-dir=x-y"], ["--data_dir=x-y"]])
def test_dashes_and_underscores(words):
    assert parse(*words) == {**DEFAULTS, "data_dir": Path("x-y")}


@pytest.mark.parametrize(
    ("words", "ema", "augment"),
    [
        (["--ema"], True, True),
        (["--ema", "true"], True, True),
        (["--ema=true"], True, True),
        (["--ema", "False"], False, True),
        (["--no-ema"], False, True),
        (["--no_augment", "--ema"], True, False),
        (["--augment=false"], False, False),
        (["--ema", "--epochs", "3"], True, True),
    ],
)
def test_switches(words, ema, augment):
    assert parse(*words) == {**DEFAULTS, "ema": ema, "augment": augment}


def test_the_command_line_wins_over_the_file(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("epochs: 9\nnames: [a, b]\nema: true\n")
    expected = {**DEFAULTS, "epochs": 5, "names": ["a", "b"], "ema": True}
    assert parse("--config", str(config), "--epochs", "5") == expected
    assert parse("--epochs", "5", "--config", str(config))["epochs"] == 9, "among equals the later one wins"


@pytest.mark.parametrize("flag", ["--print_config", "--print-config"])
def test_printed_options_are_a_config_file(tmp_path, capsys, flag):
    assert parse(flag, "--epochs", "5", "--no-augment") is None
    config = tmp_path / "printed.yaml"
    config.write_text(capsys.readouterr().out)
    assert parse("--config", str(config)) == {**DEFAULTS, "epochs": 5, "augment": False}


def test_help_shows_the_docstring_types_and_defaults(capsys):
    assert parse("--help") is None
    out = capsys.readouterr().out
    assert "Train something.\n\nA second paragraph." in out
    assert "Args:" not in out
    assert "how long. (type: int, default: 3)" in out
    assert "--config" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epoch", "3"], "unknown option 'epoch'. Did you mean 'epochs'?"),
        (["--data-dri", "x"], "unknown option 'data_dri'. Did you mean 'data_dir'?"),
        (["--epochs", "many"], "--epochs: .*int.*many"),
        (["--epochs"], "--epochs: expected one argument"),
        (["digits"], "options start with --, got .digits."),
        (["--ema=perhaps"], "--ema: .*bool.*perhaps"),
        (["--config", "missing.yaml"], "missing.yaml"),
    ],
)
def test_mistakes_are_one_line(words, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse(*words)
    assert "\n" not in str(caught.value)


def test_a_wrong_key_in_a_file_gets_the_nearest_one(tmp_path):
    (tmp_path / "run.yaml").write_text("epoch: 9\n")
    with pytest.raises(ValueError, match="unknown option 'epoch'. Did you mean 'epochs'?"):
        parse("--config", str(tmp_path / "run.yaml"))
