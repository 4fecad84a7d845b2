"""Who may import whom. The table is the architecture; change it only together with docs/design.md."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import dynavit

PACKAGE = Path(dynavit.__file__).parent

ROOMS = {"common", "norms", "convert", "models", "data", "engine", "tasks", "bench", "analysis", "deploy", "runs"}

MAY_IMPORT: dict[str, set[str]] = {
    "common": set(),
    "norms": {"common"},
    "convert": {"norms", "common"},
    "models": {"convert", "norms", "common"},
    "data": {"common"},
    "engine": {"common"},
    "tasks": {"models", "norms", "data", "analysis", "common"},
    "bench": {"models", "norms", "data", "engine", "common"},
    "analysis": {"models", "convert", "norms", "data", "bench", "common"},
    "deploy": {"models", "convert", "norms", "common"},
    "runs": ROOMS,
    "cli": ROOMS | {"__init__"},
    "__init__": ROOMS,  # the public door
    "__main__": {"cli"},  # `python -m dynavit`, the only one to import cli
}
# The names of a run's files stand in one module, which every room that reads or writes one may import. It is a leaf.
LEAVES = {"runs.directory": {"engine", "bench", "analysis"}}
LEAF_MAY_IMPORT = {"common"}
MAY_NOT_IMPORT_FROM_OUTSIDE = {"norms": {"timm"}}


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def violations(package: Path) -> list[str]:
    """Every import under `package` that the tables do not allow, as "file:line: why"."""
    found = []
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package).with_suffix("").parts
        room = parts[0]
        if room not in MAY_IMPORT:
            found.append(f"{file.relative_to(package)}: {room!r} is not in the table")
            continue
        leaf = ".".join(parts) in LEAVES
        # The dotted name that relative imports start from: a package is its own, a module has its parent's.
        here = (package.name, *parts[:-1])
        for line, target in imports(parsed(file), here):
            outside, _, inside = target.partition(".")
            if outside != package.name:
                allowed = outside not in MAY_NOT_IMPORT_FROM_OUTSIDE.get(room, ())
            else:
                wanted = inside.partition(".")[0]
                # `from dynavit import create_norm`: not a room, so it is the public door
                wanted = wanted if wanted in MAY_IMPORT else "__init__"
                allowed = wanted in LEAF_MAY_IMPORT if leaf else wanted == room or wanted in MAY_IMPORT[room]
                allowed |= any(inside.startswith(name) and room in rooms for name, rooms in LEAVES.items())
            if not allowed:
                found.append(f"{file.relative_to(package)}:{line}: {room} may not import {target}")
    return found


def imports(tree: ast.AST, here: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of every import, wherever it stands: inside functions, conditions, import_module("...")."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(here[: len(here) - node.level + 1]) if node.level else ""
            base = ".".join(part for part in (start, node.module) if part)
            # `from . import x` and `from dynavit import x`: x itself may be a room
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            name = node.args[0].value
            if called in ("import_module", "__import__") and isinstance(name, str):
                level = len(name) - len(name.lstrip("."))
                start = ".".join(here[: len(here) - level + 1]) if level else ""
                yield node.lineno, ".".join(part for part in (start, name.lstrip(".")) if part)


def test_every_import_is_allowed():
    assert violations(PACKAGE) == []


def test_the_root_holds_rooms_only():
    entries = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert entries == {"__init__.py", "__main__.py", "py.typed", "recipes", "cli"} | ROOMS


# ---- Facts that stand in one room

RUN_FILES = r"""["'/](config\.yaml|(model|env|finished|policy|comparison|calibration)\.json|metrics\.jsonl)["']"""


def spelled(pattern: str, package: Path, allowed: tuple[str, ...]) -> list[str]:
    """Places in code, not in docstrings and comments, that hold the pattern outside the allowed files."""
    found = []
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package).as_posix()
        if name.startswith(allowed):
            continue
        tree = parsed(file)
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            text = f'"{node.value}"' if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if id(node) not in prose and re.search(pattern, text):
                found.append(f"{name}:{node.lineno}: {node.value}")
    return found


def test_files_of_a_run_are_named_in_one_place():
    assert spelled(RUN_FILES, PACKAGE, ("runs/directory.py", "engine/checkpoint.py", "deploy/bundle/")) == []


def test_metrics_and_tasks_are_named_by_tasks_alone():
    # read.py knows what runs from before metrics were stored hold; the others are about classifiers by their subject.
    known = (
        "tasks/",
        "analysis/report/read.py",
        "analysis/report/sections/classification.py",
        "analysis/report/sections/robustness.py",
        "analysis/report/sections/self_distillation.py",
        "runs/robustness.py",
        "runs/probe.py",
        "cli/robust.py",
        "cli/show_probe.py",
    )
    assert spelled(r'"(top1|top5|ece)"', PACKAGE, known) == []
    assert spelled(r'"early_exit"', PACKAGE, ("tasks/", "models/cascade/", "deploy/", "cli/export.py")) == []


def collections_of(names: set[str], package: Path, allowed: tuple[str, ...]) -> list[str]:
    """Sets, lists, tuples and dicts that hold two of the names or more, outside the allowed files."""
    found = []
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package).as_posix()
        for node in ast.walk(parsed(file)):
            items = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", ())
            held = {item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)}
            if len(held & names) > 1 and not name.startswith(allowed):
                found.append(f"{name}:{node.lineno}: {sorted(held & names)}")
    return found


def test_facts_about_norms_stand_in_norms_alone():
    """Others that may name some: releases are known by their norms, DTN is described in words of other norms, a norm of another
    library is an "ln" or an "rms", and a comparison has a default."""
    nature = ("analysis/measures/dtn_nature.py", "analysis/report/inside/dtn_nature.py")
    known = ("norms/", "models/released/", *nature, "convert/trace.py", "runs/compare.py")
    assert collections_of(set(dynavit.list_norms()), PACKAGE, known) == []


def test_collections_are_found(tmp_path):
    (tmp_path / "a.py").write_text("NEED_GRID = {'dtn', 'sn'}\nx = ['dtn']\ny = {'ln': 1, 'rms': 2}\n")
    assert len(collections_of({"dtn", "sn", "ln", "rms"}, tmp_path, ())) == 2


def test_the_checker_reads_the_real_package():
    seen = {target for _, target in imports(ast.parse((PACKAGE / "norms/factory.py").read_text()), ("dynavit", "norms"))}
    assert "dynavit.common.registry.nearest_match_error" in seen


def checked(tmp_path, files):
    package = tmp_path / "dynavit"
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    return violations(package)


def test_violations_of_every_form_are_caught(tmp_path):
    bad = {
        "common/a.py": "import dynavit.norms",
        "norms/b.py": "import timm",
        "norms/c.py": "from timm.layers import LayerNorm",
        "norms/native/d.py": "from ...models import vit",
        "engine/e.py": "def late():\n    from ..tasks.classification import Classification",
        "data/f.py": "from .. import models",
        "models/__init__.py": "from ..cli.main import main",
        "tasks/g.py": "from importlib import import_module\nimport_module('dynavit.engine')",
        "bench/h.py": "import importlib\nimportlib.import_module('..analysis', __package__)",
        "convert/i.py": "from dynavit import create_model",  # through the public door
        "convert/j.py": "import dynavit",
        "runs/k.py": "from ..cli.list import norm_rows",
        "deploy/l.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..runs.compare import compare",
        "engine/m.py": "from ..runs.subject import Subject",
        "runs/directory.py": "from ..engine.loop import train",
        "attic/n.py": "",
        "model_files.py": "",
    }
    found = checked(tmp_path, bad)
    for file in bad:
        assert any(line.startswith(file) for line in found), f"{file} was not caught"
    assert len(found) == len(bad)


def test_allowed_imports_pass(tmp_path):
    good = {
        "__init__.py": "from .norms import create_norm as create_norm\nfrom .runs.model_files import load as load",
        "__main__.py": "from .cli.main import main",
        "runs/assemble.py": "from .. import deploy\nfrom . import model_files\nfrom ..models import vit",
        "engine/loop.py": "from ..runs.directory import RunDirectory",
        "cli/main.py": "from .. import __version__\nfrom ..runs.compare import compare\nfrom .list import x",
        "models/a.py": "import timm\nfrom ..norms.dtn import P\nfrom ..common import files\nfrom . import b\nfrom .b import c",
        "norms/__init__.py": "from .contract import Norm as Norm",
        "norms/native/a.py": "import torch, timmy\nfrom ..statistics import moments\nfrom ...common.files import write_json",
    }
    assert checked(tmp_path, good) == []
