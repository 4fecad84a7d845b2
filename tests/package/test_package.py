"""Wheel and sdist, built from the repository and installed into an empty environment.

The build back end and the dependencies come from a package index.
"""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from documents import ROOT
from package.test_extras import one_sentence
from package.test_release import PROJECT

pytestmark = pytest.mark.slow

VERSION = PROJECT["project"]["version"]
NEEDED = {  # of each kind of file beside the code
    "norms/dtn/native/dtn_f32.c",
    "norms/passes/passes_f32.c",
    "analysis/report/templates/report.html",
    "deploy/serve/page.html",
    "data/digits.npz",
    "data/digits.txt",
    "recipes/digits.yaml",
    "py.typed",
}


def call(*words: object, cwd: Path | None = None, **environment: str) -> str:
    """Standard output of a program that ends well."""
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "DISPLAY", "MPLBACKEND", "CC")}
    run = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=clean | environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def environment(folder: Path, python: str | Path = sys.executable) -> Path:
    """A fresh environment; its interpreter."""
    call(python, "-m", "venv", folder)
    return folder / "bin" / "python"


def install(python: Path, *words: object) -> None:
    call(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", *words)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """{"wheel": file, "sdist": file}, from what git knows: build products of a checkout stay out."""
    folder = tmp_path_factory.mktemp("built")
    python = environment(folder / "env")
    call(python, "-m", "pip", "install", "--quiet", *PROJECT["build-system"]["requires"])
    call(python, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    wheel, sdist = (folder / f"dynavit-{VERSION}{end}" for end in ("-py3-none-any.whl", ".tar.gz"))
    return {"wheel": wheel, "sdist": sdist, "env": python}


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The interpreter of an environment with the wheel and its dependencies alone."""
    python = environment(tmp_path_factory.mktemp("empty") / "env")
    install(python, built["wheel"])
    return python


def known_files() -> set[str]:
    return set(call("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines())


def test_the_wheel_holds_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = set(wheel.namelist())
        metadata = wheel.read(f"dynavit-{VERSION}.dist-info/METADATA").decode()
    inside = {name.removeprefix("dynavit/") for name in names if name.startswith("dynavit/")}
    assert inside == {name.removeprefix("src/dynavit/") for name in known_files() if name.startswith("src/dynavit/")}
    assert inside >= NEEDED
    assert all(name.startswith(f"dynavit-{VERSION}.dist-info/") for name in names if not name.startswith("dynavit/"))
    assert {f"dynavit-{VERSION}.dist-info/licenses/{name}" for name in ("LICENSE", "NOTICE")} <= names
    assert f"Version: {VERSION}\n" in metadata and "License-Expression: Apache-2.0 AND CC-BY-4.0\n" in metadata


def test_the_sdist_holds_the_repository_and_builds_the_same_wheel(built, tmp_path):
    with tarfile.open(built["sdist"]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
        sdist.extractall(tmp_path, filter="data")
    assert known_files() - names == set()
    call(built["env"], "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=tmp_path / f"dynavit-{VERSION}")
    with zipfile.ZipFile(built["wheel"]) as first, zipfile.ZipFile(tmp_path / built["wheel"].name) as second:
        assert {each.filename: each.CRC for each in first.infolist()} == {each.filename: each.CRC for each in second.infolist()}


def test_the_command_works_in_an_empty_environment(installed, tmp_path):
    dynavit = installed.with_name("dynavit")
    call(installed, "-m", "pip", "check")
    assert call(dynavit, "--version").strip() == f"dynavit {VERSION}"
    assert "dtn" in call(dynavit, "list", "norms") and "digits" in call(dynavit, "list", "recipes")
    words = ["--norm", "dtn", "--epochs", "0.05", "--model_options.depth", "1", "--out", "run"]
    call(dynavit, "train", *words, cwd=tmp_path, DYNAVIT_CACHE=str(tmp_path / "cache"))
    assert list((tmp_path / "cache").rglob("*.so")), "the C kernel was built from the installed sources"
    assert json.loads((tmp_path / "run" / "env.json").read_text())["dynavit"] == VERSION


def test_neither_compiler_nor_display_is_needed(installed, tmp_path):
    """PATH without any program; figures are drawn for the report of a comparison."""
    words = ["--norms", "ln,dtn", "--seeds", "0", "--epochs", "0.05", "--model_options.depth", "1", "--out", "both"]
    call(installed.with_name("dynavit"), "compare", *words, cwd=tmp_path, PATH="", DYNAVIT_CACHE=str(tmp_path / "cache"))
    assert "<svg" in (tmp_path / "both" / "report.html").read_text()
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_what_an_extra_would_bring_is_told(installed):
    said = json.loads(call(installed, "-W", "ignore", Path(__file__).with_name("extras.py")))
    for extra, message in said:
        if extra != "gpu":  # a CUDA build of torch brings triton
            assert one_sentence(message, extra), message


# ---- Other versions of Python, without torch: no CPU build of it could be had for them here


def interpreters() -> list[str]:
    """Those on PATH, and pyenv's."""
    found = {}
    for version in ("3.11", "3.12", "3.13"):
        pyenv = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}*/bin/python"))
        for python in (f"python{version}", *pyenv):
            try:
                says = subprocess.run([str(python), "--version"], capture_output=True, text=True, check=True).stdout
            except (OSError, subprocess.CalledProcessError):
                continue
            if says.startswith(f"Python {version}."):
                found[version] = str(python)
    return list(found.values())


@pytest.mark.parametrize("python", interpreters())
def test_other_versions_of_python(python, built, tmp_path):
    own = environment(tmp_path / "env", python)
    call(own, "-m", "pip", "install", "--quiet", "--no-deps", built["wheel"])
    package = call(own, "-c", "import dynavit; print(*dynavit.__path__)").strip()
    call(own, "-W", "error", "-m", "compileall", "-q", "-f", package)
    dynavit = own.with_name("dynavit")
    assert call(dynavit, "--version").strip() == f"dynavit {VERSION}"
    assert "train" in call(dynavit, "--help")
    assert call(own, "-c", "import dynavit; print(len(dynavit.__all__), dynavit.__version__)").split()[1] == VERSION
    without_torch = ["files", "fits", "json_lines", "lock", "metric", "owned", "plugins", "registry", "extras"]
    call(own, "-W", "error", "-c", "".join(f"import dynavit.common.{name}\n" for name in without_torch))
