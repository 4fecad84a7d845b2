"""An extra that is not installed is one sentence with the line that installs it."""

import ast
import importlib.util
import re
import sys
import tomllib

import pytest

from documents import ROOT
from package.extras import USES, said

DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
OUTSIDE = {"dev", "docs", "examples"}  # of the checkout: the package itself uses nothing of them
BRIDGES = {"tensorboard": ("torch.utils.tensorboard",)}  # modules of others that fail without the library


def one_sentence(message: str, extra: str) -> bool:
    line = f"it comes with the extra [{extra}]: pip install 'dynavit[{extra}]'"
    return message.endswith(line) and "is not installed" in message and "\n" not in message


def test_every_extra_is_used():
    assert {use.extra for use in USES} | OUTSIDE == set(DECLARED)


@pytest.mark.parametrize("use", USES, ids=lambda use: f"{use.extra}-{use.missing[0]}")
def test_a_missing_library_is_told_with_the_line_that_installs_it(use, monkeypatch):
    for library in use.missing:
        hide(library, monkeypatch)
    message = said(use)
    assert one_sentence(message, use.extra), message
    assert use.missing[0].replace("_", "-") in message.replace("_", "-")


def hide(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were not installed, also if it has been imported."""
    find_spec = importlib.util.find_spec
    parts = [module for module in sys.modules if module.startswith(f"{library}.")]
    for module in [library, *parts, *BRIDGES.get(library, ())]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == library else find_spec(name, *more))


def test_the_check_can_fail():
    assert not one_sentence("", "serve")
    assert not one_sentence("uvicorn is not installed", "serve")
    assert not one_sentence(
        "uvicorn is not installed; it comes with the extra [export]: pip install 'dynavit[export]'", "serve"
    )


@pytest.mark.parametrize("library", ["latex2mathml", "mkdocstrings", "zensical"])
def test_the_site_says_what_it_needs(library, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docsite")
    from build import main

    hide(library, monkeypatch)
    with pytest.raises(ValueError) as error:
        main(tmp_path / "site")
    assert one_sentence(str(error.value), "docs") and not (tmp_path / "site").exists()


def test_examples_name_the_library_that_they_show():
    for requirement in DECLARED["examples"]:
        library = re.split(r"[>=<]", requirement)[0]
        using = [file for file in (ROOT / "examples").glob("*.py") if f"from {library} import" in file.read_text()]
        assert using, f"no example uses {library}"
        for file in using:
            assert f"pip install {library}" in (ast.get_docstring(ast.parse(file.read_text())) or ""), file.name
