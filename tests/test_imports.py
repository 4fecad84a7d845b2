"""`import dynavit` stays light: heavy and fragile libraries load when something needs them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dynavit

HEAVY = {"timm", "torchvision", "matplotlib", "rich", "jsonargparse", "accelerate"}


def loaded_by(code: str, names: set[str]) -> set[str]:
    """Which of these top-level modules are loaded after running `code` in a fresh interpreter."""
    report = f"{code}\nimport sys\nprint(*sorted(set(sys.modules) & {names!r}))"
    run = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.splitlines()[-1].split())


def test_import_dynavit_loads_nothing_heavy():
    assert loaded_by("import dynavit", HEAVY | {"torch"}) == set()


def test_the_public_names_load_torch_and_little_else():
    """Those of norms; then, in the same interpreter, those of models, which stand on timm, and timm on torchvision."""
    use = "for name, home in dynavit._HOMES.items(): home == {!r} and getattr(dynavit, name)"
    told = f"print(*sorted(set(sys.modules) & {HEAVY | {'torch'}!r}))"
    code = "\n".join(["import sys, dynavit", use.format(".norms"), told, use.format(".models"), told])
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    norms, models = (set(line.split()) for line in run.stdout.splitlines())
    assert norms == {"torch"}
    assert models == {"torch", "timm", "torchvision"}


@pytest.mark.parametrize("name", ["rich", "jsonargparse"])
def test_the_check_can_fail(name):
    assert loaded_by(f"import dynavit, {name}", HEAVY) >= {name}


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["lst"], ["bench", "--help"], ["bench", "norms", "--help"]])
def test_help_and_typing_errors_need_no_torch(words):
    assert loaded_by(f"from dynavit.cli.main import main; main({words!r})", {"torch"}) == set()


def test_type_checkers_and_the_interpreter_see_the_same_door():
    tree = ast.parse(Path(dynavit.__file__).read_text())
    typed = {
        alias.asname: f".{node.module}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level == 1
        for alias in node.names
    }
    assert typed == dynavit._HOMES
    assert sorted(dynavit.__all__) == sorted([*typed, "__version__"])
    assert set(dynavit.__all__) <= set(dir(dynavit))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'create_nrom'"):
        dynavit.create_nrom  # noqa: B018
