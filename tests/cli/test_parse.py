"""Options: one spelling in Python, forgiving ones on the command line, the same in a file."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dynavit.cli.parse import parse_options, positional


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
        (["--epochs", "3", "digits"], r"got 'digits' behind an option. Usage: dynavit train \[options\]"),
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


# ---- Words before the options, groups, recipes


@dataclass
class Optim:
    """Of a run.

    Attributes:
        clip: largest gradient.
    """

    clip: float = 1.0
    nesterov: bool = True


@dataclass
class Loading:
    strict: bool = False


@dataclass
class Config:
    """A run.

    Attributes:
        lr: how fast.
    """

    lr: float = 0.1
    seeds: list[int] = field(default_factory=lambda: [0])
    extra: dict[str, Any] = field(default_factory=dict)
    optim: Optim = field(default_factory=Optim)
    loading: Loading = field(default_factory=Loading)


@positional("run", "images...")
def predict(config: Config, run: Path, images: list[Path] | None = None, top: int = 5) -> None:
    """Say what there is."""


def parsed(*words):
    return parse_options(predict, words, prog="dynavit predict")


def test_words_before_the_options():
    assert parsed("x", "a b.png", "c.png", "--top", "3") == {
        "config": Config(),
        "run": Path("x"),
        "images": [Path("a b.png"), Path("c.png")],
        "top": 3,
    }
    assert parsed("x")["images"] is None
    assert parsed("--run", "x")["run"] == Path("x")
    with pytest.raises(ValueError, match="run"):
        parsed()
    with pytest.raises(ValueError, match=r"got 'x' behind an option. Usage: dynavit predict RUN IMAGES... \[options\]"):
        parsed("--top", "3", "x", "a.png")


def test_fields_of_a_dataclass_are_options_and_those_of_a_group_are_dotted():
    config = parsed("x", "--lr", "3", "--optim.clip=2", "--no-optim.nesterov", "--extra.depth", "4", "--extra.name", "a")[
        "config"
    ]
    assert config == Config(3.0, extra={"depth": 4, "name": "a"}, optim=Optim(2.0, False))


@pytest.mark.parametrize("words", [["--strict"], ["--strict=true"], ["--loading.strict"], ["--loading.strict", "true"]])
def test_everyday_options_of_a_group_have_a_short_form(words):
    assert parsed("x", *words)["config"].loading.strict is True


def test_a_short_form_can_be_negated(tmp_path):
    (tmp_path / "x.yaml").write_text("loading: {strict: true}")
    assert parsed("x", "--config", str(tmp_path / "x.yaml"), "--no-strict")["config"].loading.strict is False


@pytest.mark.parametrize(
    ("words", "seeds"), [("--seeds 1,2", [1, 2]), ("--seeds=3", [3]), ("--seeds [4,5]", [4, 5]), ("--seeds -1,2", [-1, 2])]
)
def test_lists_of_numbers_need_no_brackets(words, seeds):
    assert parsed("x", *words.split())["config"].seeds == seeds


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--optim.clipp", "2"], "unknown option 'optim.clipp'. Did you mean 'optim.clip'"),
        (["--seeds", "a,b"], "--seeds: .*int"),
        (["--optim.clip", "much"], "--optim.clip: .*float.*much"),
    ],
)
def test_mistakes_in_groups_are_one_line(words, message):
    with pytest.raises(ValueError, match=message) as caught:
        parsed("x", *words)
    assert "\n" not in str(caught.value)


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    """A directory of recipes with one in it, and an empty working directory."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "tiny.yaml").write_text("# What: a recipe\nlr: 0.25\noptim:\n  clip: 5\n")
    (tmp_path / "here").mkdir()
    monkeypatch.setattr("dynavit.cli.recipes.DIRECTORY", tmp_path / "recipes")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.mark.parametrize("words", [["--config", "tiny"], ["--config=tiny"]])
def test_a_recipe_by_its_name(recipes, words):
    assert parsed("x", *words, "--lr", "0.5")["config"] == Config(0.5, optim=Optim(5.0))
    (recipes / "tiny").mkdir()
    assert parsed("x", *words)["config"].lr == 0.25, "a directory of that name is no file"


def test_a_file_of_that_name_comes_first(recipes):
    (recipes / "tiny").write_text("lr: 0.75")
    assert parsed("x", "--config", "tiny")["config"] == Config(0.75)


@pytest.mark.parametrize(("given", "nearest"), [("tinny", "'tiny'"), ("mien.yaml", "'mine.yaml'"), ("../recipes/tiny", "tiny")])
def test_an_unknown_recipe_or_file_gets_the_nearest(recipes, given, nearest):
    (recipes / "mine.yaml").write_text("lr: 0.75")
    with pytest.raises(ValueError, match=f"unknown recipe or file '{given}'. Did you mean .*{nearest}"):
        parsed("x", "--config", given)


def test_a_file_names_no_code(tmp_path):
    """A configuration file may come from anywhere; a plug-in is Python that would be run."""
    (tmp_path / "c.yaml").write_text("plugin: [mine.py]\n")
    with pytest.raises(ValueError, match="names no plug-ins.*give --plugin FILE.py beside it"):
        parse("--config", str(tmp_path / "c.yaml"))


def test_a_word_that_is_none_of_those_allowed():
    from typing import Literal

    def compare(equal: Literal["epochs", "time"] = "epochs") -> None:
        """Compare."""

    with pytest.raises(ValueError, match="--equal: Expected epochs or time. Got value: tim "):
        parse_options(compare, ["--equal", "tim"], prog="dynavit compare")
