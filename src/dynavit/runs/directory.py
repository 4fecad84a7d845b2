"""Every path and format inside a run or comparison directory. No other file spells their names.

A run:          config.yaml  env.json  model.json  metrics.jsonl  metrics.csv  finished.json  checkpoints/{last,previous,best}/
                eval/<name>.json  eval/robust/  policy.json  analysis/  tensorboard/  report.html
A comparison:   comparison.json  <setting>-seed<n>/ (runs)  analysis/  report.html

Training, evaluation and reports talk through these files alone. This module imports nothing but `common`, so that the engine
and the analysis may read and write through it too.
"""

import os
from pathlib import Path
from typing import Any, Literal, TypedDict

from ..common.files import read_json, with_nulls, write_json, write_text
from ..common.fits import Count

CheckpointName = Literal["last", "best"]
WeightsName = Literal["model", "ema"]

REPORT = "report.html"


class Best(TypedDict):
    """The best validation of a training."""

    value: float
    step: Count
    weights: WeightsName


class Finished(TypedDict):
    """finished.json"""

    steps: Count
    best: Best | None


class AnyDirectory:
    """The files that runs, comparisons and analyses of several runs have in common."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.report_file = self.path / REPORT
        self.analysis = self.path / "analysis"
        self.analysis_index = self.analysis / "index.json"

    def analysis_file(self, kind: str) -> Path:
        """The numbers behind one kind of figures."""
        return self.analysis / f"{kind}.json"

    def figure_file(self, name: str) -> Path:
        """A figure, named with its ending as in the index of the analysis."""
        return self.analysis / Path(name).name


class ComparisonDirectory(AnyDirectory):
    """Paths of one comparison. Its runs stand in it by name."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.comparison_file = self.path / "comparison.json"

    def is_comparison(self) -> bool:
        return self.comparison_file.is_file()

    def run(self, name: str) -> "RunDirectory":
        return RunDirectory(self.path / name)


class RunDirectory(AnyDirectory):
    """Paths and small files of one run. `create` first, once, by one process; any process may open it then."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.config_file = self.path / "config.yaml"
        self.card_file = self.path / "model.json"
        self.env_file = self.path / "env.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.metrics_table = self.path / "metrics.csv"
        self.finished_file = self.path / "finished.json"
        self.policy_file = self.path / "policy.json"
        self.calibration_file = self.analysis / "calibration.json"
        self.checkpoints = self.path / "checkpoints"
        self.evaluations = self.path / "eval"
        self.robustness = self.evaluations / "robust"
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

    # ---- Paths with a name in them

    def checkpoint(self, name: str) -> Path:
        """The directory of a checkpoint; ValueError if there is none of that name."""
        directory = self.checkpoints / name
        if not directory.is_dir():
            there = sorted(entry.name for entry in self.checkpoints.glob("[!.]*"))
            raise ValueError(f"{self.path} has no checkpoint {name!r}; there is {' and '.join(there) or 'none yet'}")
        return directory

    def has_checkpoint(self) -> bool:
        return any(self.checkpoints.glob("[!.]*"))

    def evaluation_file(self, name: str) -> Path:
        return self.evaluations / f"{name}.json"

    def evaluation_files(self) -> list[Path]:
        return sorted(self.evaluations.glob("*.json"))

    def robustness_file(self, kind: str) -> Path:
        return self.robustness / f"{kind}.json"

    def robustness_files(self) -> list[Path]:
        return sorted(self.robustness.glob("*.json"))

    # ---- Small files

    def is_run(self) -> bool:
        return self.config_file.is_file() or self.metrics_file.is_file()

    def write_config(self, config: dict[str, Any]) -> None:
        import yaml  # here, as the other slow imports below: `dynavit --help` imports this module

        write_text(self.config_file, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))

    def read_config(self) -> dict[str, Any]:
        if not self.config_file.is_file():
            raise ValueError(f"{self.path} is not a run directory: it has no {self.config_file.name}")
        import yaml

        try:
            config = yaml.safe_load(self.config_file.read_text())
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ValueError(f"{self.config_file} is damaged: {' '.join(str(error).split())}") from error
        if not isinstance(config, dict):
            raise ValueError(f"{self.config_file} should hold names and values, found {type(config).__name__}")
        return config

    def write_env(self, **facts: Any) -> None:
        """Versions, and facts of the caller: device, seed, command."""
        write_json(self.env_file, {**versions(), **facts})

    def write_evaluation(self, name: str, results: dict[str, Any]) -> Path:
        """A loss that is not a number is a result too, and becomes null."""
        path = self.evaluation_file(name)
        write_json(path, with_nulls(results))
        return path

    def final_evaluation(self) -> dict[str, Any] | None:
        """The evaluation at the end of the training: on test, or on validation where there is no test split."""
        for split in ("test", "val"):
            file = self.evaluation_file(split)
            if file.is_file():
                return read_json(file)
        return None

    def mark_finished(self, facts: dict[str, Any]) -> None:
        write_json(self.finished_file, facts)

    def finished(self) -> dict[str, Any] | None:
        """The facts that `mark_finished` wrote; None if the training has not come to its end."""
        return read_json(self.finished_file, Finished) if self.finished_file.is_file() else None

    # ---- Overwriting

    @property
    def _entries(self) -> set[str]:
        """Names that a run directory may hold. Anything else is somebody's own, and then nothing is deleted."""
        files = (self.config_file, self.card_file, self.env_file, self.metrics_file, self.metrics_table, self.finished_file)
        directories = (self.checkpoints, self.evaluations, self.tensorboard, self.analysis)
        return {path.name for path in (*files, *directories, self.policy_file, self.report_file)}

    def _clear(self) -> None:
        import shutil

        entries = sorted(self.path.iterdir())
        foreign = [entry.name for entry in entries if entry.name not in self._entries and not _left_over(entry.name)]
        if foreign or not self.config_file.is_file():
            why = f"it holds {foreign[0]!r}" if foreign else f"it has no {self.config_file.name}"
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
    """Versions that a result may depend on, and the commit where the package is a git checkout."""
    import platform
    from importlib.metadata import version

    packages = {name: version(name) for name in ("dynavit", "torch", "timm", "accelerate", "numpy")}
    return {"python": platform.python_version(), **packages, "commit": _commit(), "platform": platform.platform()}


def _commit() -> str | None:
    import subprocess

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
