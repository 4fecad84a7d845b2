"""A run's directory: the files through which training, evaluation and reports talk.

config.yaml  env.json  metrics.jsonl  finished.json  checkpoints/{last,previous,best}/  eval/*.json  tensorboard/
"""

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from ..common.files import with_nulls, write_json, write_text

# What a run directory may hold. Anything else is somebody's own, and then nothing is deleted.
ENTRIES = {"config.yaml", "env.json", "metrics.jsonl", "finished.json", "checkpoints", "eval", "tensorboard", "analysis"}
ENTRIES |= {"model.json", "policy.json", "report.html"}


class RunDirectory:
    """Paths and small files of one run. `create` first, once, by one process; any process may open it then."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.yaml"
        self.metrics_file = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.tensorboard = self.path / "tensorboard"

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, resume: bool = False, overwrite: bool = False) -> "RunDirectory":
        """Make the directory. One that holds something is refused, unless it is to be resumed or may be overwritten."""
        run = cls(path)
        if resume and overwrite:
            raise ValueError("a run is either resumed or overwritten, not both")
        if run.path.exists() and not run.path.is_dir():
            raise ValueError(f"{run.path} is a file; a run needs a directory of its own")
        if run.path.is_dir() and any(run.path.iterdir()) and not resume:
            if not overwrite:
                raise ValueError(f"{run.path} exists and is not empty; choose another --out, or --resume or --overwrite it")
            run._clear()
        run.path.mkdir(parents=True, exist_ok=True)
        return run

    def write_config(self, config: dict[str, Any]) -> None:
        write_text(self.config_file, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))

    def read_config(self) -> dict[str, Any]:
        if not self.config_file.is_file():
            raise ValueError(f"{self.path} is not a run directory: it has no config.yaml")
        config = yaml.safe_load(self.config_file.read_text())
        if not isinstance(config, dict):
            raise ValueError(f"{self.config_file} should hold names and values, found {type(config).__name__}")
        return config

    def write_env(self, **facts: Any) -> None:
        """env.json: versions, and what the caller knows: device, seed, command."""
        write_json(self.path / "env.json", {**versions(), **facts})

    def write_eval(self, name: str, results: dict[str, Any]) -> Path:
        """A loss that is not a number is a result too, and becomes null."""
        path = self.path / "eval" / f"{name}.json"
        write_json(path, with_nulls(results))
        return path

    def mark_finished(self, facts: dict[str, Any]) -> None:
        write_json(self.path / "finished.json", facts)

    def finished(self) -> dict[str, Any] | None:
        """What `mark_finished` wrote; None if the training has not come to its end."""
        path = self.path / "finished.json"
        return json.loads(path.read_text()) if path.is_file() else None

    def _clear(self) -> None:
        entries = sorted(self.path.iterdir())
        foreign = [entry.name for entry in entries if entry.name not in ENTRIES and not _left_over(entry.name)]
        if foreign or not self.config_file.is_file():
            why = f"it holds {foreign[0]!r}" if foreign else "it has no config.yaml"
            raise ValueError(
                f"{self.path} does not look like a run directory ({why}), so it is not overwritten; remove it yourself"
            )
        # config.yaml goes last: until then it still looks like a run, and can be overwritten again.
        for entry in sorted(entries, key=lambda entry: entry == self.config_file):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def versions() -> dict[str, Any]:
    """What a result may depend on: versions, and the commit where the package is a git checkout."""
    packages = {name: importlib.metadata.version(name) for name in ("dynavit", "torch", "timm", "accelerate", "numpy")}
    return {"python": platform.python_version(), **packages, "commit": _commit(), "platform": platform.platform()}


def _commit() -> str | None:
    here = Path(__file__).parent
    # Installed inside somebody's repository, the package is not tracked there, and that commit says nothing about it.
    tracked = ["git", "-C", str(here), "ls-files", "--error-unmatch", "__init__.py"]
    try:
        subprocess.run(tracked, capture_output=True, check=True, timeout=5)
        head = subprocess.run(["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, check=True, timeout=5)
        changed = subprocess.run(["git", "-C", str(here), "diff", "--quiet", "HEAD"], capture_output=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.decode().strip() + (" with changes" if changed.returncode else "")


def _left_over(name: str) -> bool:
    """Of a file whose writing was interrupted, see `common.files`."""
    return name.startswith(".") and name.endswith(".tmp")
