"""Files of the user's own that register norms, tasks, data sets or models.

`--plugin FILE.py` and `load_plugin(FILE)` run such a file once. Nothing else does: a run directory names the files it was made
with, and they are never imported for that alone.
"""

import hashlib
import sys
from collections.abc import Iterable, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

from .registry import REGISTRIES

_files: dict[Path, ModuleType] = {}  # in the order they were loaded


def load_plugin(path: str | PathLike[str]) -> ModuleType:
    """Run a Python file that registers norms, tasks, data sets or models. A file is run once, however often it is named."""
    file = Path(path).expanduser().resolve()
    if file in _files:
        return _files[file]
    if not file.is_file():
        raise ValueError(f"plug-in {path}: no such file; name a Python file that registers norms, tasks, data sets or models")
    # The name is made from the path: classes get the same module in every process, so that they can be sent between them.
    name = f"dynavit_plugin_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"plug-in {path}: not a Python file; its name ends with .py")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ValueError(f"plug-in {path}: {type(error).__name__}: {error}") from error
    _files[file] = module
    return module


def loaded_plugins() -> list[Path]:
    """Files that were loaded, in order; worker processes load the same."""
    return list(_files)


def require_guests(guests: Iterable[Mapping[str, Any]], user: object) -> list[str]:
    """Check that all that `user`, a run say, was made with is registered; ValueError names what is missing and its file.

    Args:
        guests: `registry.Guest` as dicts.

    Returns:
        notes about files that are not what they were.
    """
    notes, missing = [], []
    for guest in guests:
        registry = REGISTRIES.get(guest["kind"])
        if registry is None or guest["name"] not in registry:
            where = f"{guest['file']} (SHA-256 {guest['sha256'][:8]}…)" if guest["file"] else "an interactive session"
            missing.append(f"the {guest['kind']} {guest['name']!r} of {where}")
            continue
        now = registry.guest(guest["name"])
        if now is not None and now.sha256 != guest["sha256"]:
            notes.append(
                f"{now.file or 'the session'} defines the {guest['kind']} {guest['name']!r} and has changed since {user}"
            )
    if missing:
        raise ValueError(
            f"{user} was made with {' and '.join(missing)}, which is not registered here; name its file: --plugin FILE.py, in "
            "Python dynavit.load_plugin(FILE)"
        )
    return notes
