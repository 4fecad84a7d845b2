"""Every path and format inside a run or comparison directory. No other file spells their names.

A run:          config.yaml  env.json  model.json  metrics.jsonl  metrics.csv  finished.json  checkpoints/{last,previous,best}/
                eval/<name>.json  eval/predictions/<name>.json  eval/robust/  eval/probe/  policy.json  analysis/
                tensorboard/  report.html
A comparison:   comparison.json  <setting>-seed<n>/ (runs)  analysis/  report.html

Training, evaluation and reports talk through these files alone. This module imports nothing but `common`, so that the engine
and the analysis may read and write through it too.
"""

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from ..common.files import read_json, with_nulls, write_json, write_text
from ..common.fits import Count
from ..common.lock import LOCK, only_writer
from ..common.owned import LEFT_OVER, foreign_files, in_words, names, remove_ours

CheckpointName = Literal["last", "best"]
WeightsName = Literal["model", "ema", "student"]
ProtocolName = Literal["knn", "linear", "linear_cached"]
PROTOCOLS: tuple[str, ...] = get_args(ProtocolName)  # of frozen features

REPORT = "report.html"
BETWEEN_RENAMES = 1.0  # seconds, at most: while a checkpoint gives its name to the next one, nothing stands there

# Kinds of figures, and of robustness; tests compare them with those that are written.
KINDS = (
    *("magnitudes", "attention_distance", "mean_variation", "lambda", "dtn_nature"),
    *("positions", "directions", "attention_maps", "exits", "anchors", "padding"),
)
ROBUSTNESS = ("corruptions", "imagenet_c", "imagenet_r", "imagenet_a")


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

    @contextmanager
    def alone(self, *, make: bool = False, main: bool = True) -> Iterator[None]:
        """Inside, this process is the only one that writes here; BusyError says who else does (`common.lock`).

        Args:
            make: a directory that is missing. It disappears again if nothing was put into it.
            main: of several processes this is the one that writes. The others only pass through.
        """
        if not main or not (make or self.path.is_dir()):  # nothing to write to is another's error
            yield
            return
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(f"{self.path} is a file; a run needs a directory of its own")
        made = make and not self.path.exists()
        if make:
            self.path.mkdir(parents=True, exist_ok=True)
        try:
            with only_writer(self.path):
                yield
        finally:
            if made:
                with suppress(OSError):
                    self.path.rmdir()

    def is_empty(self) -> bool:
        """Whether nothing is there, apart from remains of a process that was killed before it began."""
        entries = (entry.name for entry in self.path.iterdir()) if self.path.is_dir() else ()
        return all(name == LOCK or re.fullmatch(LEFT_OVER, name) for name in entries)


class ComparisonDirectory(AnyDirectory):
    """Paths of one comparison. Its runs stand in it by name."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.comparison_file = self.path / "comparison.json"

    def is_comparison(self) -> bool:
        return self.comparison_file.is_file()

    def run(self, name: str) -> "RunDirectory":
        return RunDirectory(self.path / name)

    def clear(self) -> None:
        """Delete the comparison, if there is nothing in its directory but what `compare` and the other verbs wrote."""
        if foreign := foreign_files(self.path, COMPARISON_NAMES):
            raise ValueError(f"{self.path} also holds {in_words(foreign)}, so it is not overwritten; move that elsewhere first")
        with ExitStack() as locks:
            for entry in sorted(self.path.iterdir()):
                if entry.is_dir() and not entry.is_symlink() and entry != self.analysis:
                    locks.enter_context(RunDirectory(entry).alone())
            remove_ours(self.path, COMPARISON_NAMES, last=self.comparison_file)


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
        self.predictions = self.evaluations / "predictions"
        self.robustness = self.evaluations / "robust"
        self.probes = self.evaluations / "probe"
        self.tensorboard = self.path / "tensorboard"

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, resume: bool = False, overwrite: bool = False) -> "RunDirectory":
        """Make the directory. One that holds something is refused, unless it is to be resumed or may be overwritten."""
        run = cls(path)
        if resume and overwrite:
            raise ValueError("a run is either resumed or overwritten, not both")
        if run.path.exists() and not run.path.is_dir():
            raise ValueError(f"{run.path} is a file; a run needs a directory of its own")
        if resume:
            run.check_resumable()
        elif not run.is_empty():
            if not overwrite:
                raise ValueError(f"{run.path} exists and is not empty; choose another --out, or --resume or --overwrite it")
            run._clear()
        run.path.mkdir(parents=True, exist_ok=True)
        return run

    def check_resumable(self) -> None:
        """A directory that is resumed holds a run, or nothing yet: what a process leaves that was killed before it began."""
        if self.is_empty() or self.has_checkpoint() or (self.config_file.is_file() and self.card_file.is_file()):
            return
        foreign = foreign_files(self.path, RUN_NAMES)
        if foreign or not self.config_file.is_file():
            held = in_words(foreign or sorted(entry.name for entry in self.path.iterdir()))
            raise ValueError(
                f"{self.path} is not empty and holds no run that could be resumed, but {held}; nothing was changed: choose "
                "another --out"
            )

    # ---- Paths with a name in them

    def checkpoint(self, name: str) -> Path:
        """The directory of a checkpoint; ValueError if there is none of that name."""
        directory = self.checkpoints / name
        patience = time.monotonic() + BETWEEN_RENAMES
        while not directory.is_dir() and (self.checkpoints / "previous").is_dir() and time.monotonic() < patience:
            time.sleep(0.01)
        if not directory.is_dir():
            there = sorted(entry.name for entry in self.checkpoints.glob("[!.]*"))
            raise ValueError(f"{self.path} has no checkpoint {name!r}; there is {' and '.join(there) or 'none yet'}")
        return directory

    def newest_manifest(self) -> Path | None:
        """The manifest of the checkpoint that a resumed run would go on from, if nothing is damaged."""
        manifests = (self.checkpoints / name / "manifest.json" for name in ("last", "previous"))
        return next((file for file in manifests if file.is_file()), None)

    def has_checkpoint(self) -> bool:
        return self.newest_manifest() is not None

    def forget_start(self) -> None:
        """Delete the files that a training begins with, if it failed before there was anything to tell or to go on from."""
        begun = self.metrics_file.is_file() and self.metrics_file.stat().st_size > 0
        if not begun and not foreign_files(self.path, START_NAMES):
            remove_ours(self.path, START_NAMES)

    def evaluation_file(self, name: str) -> Path:
        return self.evaluations / f"{name}.json"

    def predictions_file(self, name: str) -> Path:
        """Every answer of the evaluation of that name."""
        return self.predictions / f"{name}.json"

    def evaluation_files(self) -> list[Path]:
        return sorted(self.evaluations.glob("*.json"))

    def probe_file(self, protocol: str, weights: str = "model", data: str = "") -> Path:
        """The judgement of frozen features, named by what is not as usual."""
        parts = [protocol, *([data.replace("/", "_")] if data else []), *([weights] if weights == "student" else [])]
        return self.probes / f"{'-'.join(parts)}.json"

    def probe_files(self) -> list[Path]:
        return sorted(self.probes.glob("*.json"))

    def features_file(self, split: str) -> Path:
        return self.probes / f"features-{split}.safetensors"

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
            reason = " ".join(str(error).split())
            raise ValueError(f"{self.config_file} is damaged, bring it back as it was: {reason}") from error
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

    def write_predictions(self, name: str, predictions: Any) -> Path:
        """On one line: they are many, and no person reads them."""
        path = self.predictions_file(name)
        write_text(path, json.dumps(predictions, allow_nan=False) + "\n")
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

    def _clear(self) -> None:
        foreign = foreign_files(self.path, RUN_NAMES)
        if foreign or not self.config_file.is_file():
            why = f"it holds {in_words(foreign)}" if foreign else f"it has no {self.config_file.name}"
            raise ValueError(
                f"{self.path} does not look like a run directory ({why}), so it is not overwritten; remove it yourself"
            )
        # config.yaml goes last: until then it still looks like a run, and can be overwritten again.
        remove_ours(self.path, RUN_NAMES, last=self.config_file)


# ---- Names of the files that verbs write, for deleting them and nothing else

_ANALYSIS = (
    r"analysis/",
    rf"analysis/(?:index|calibration|{'|'.join(KINDS)})\.json",
    rf"analysis/(?:{'|'.join(KINDS)})-\d+\.(?:svg|png)",
    rf"analysis/{LEFT_OVER}",
)
_EVALUATION = r"(?:[^/]+-)?(?:train|val|test)(?:-best)?(?:-model|-ema|-student)?\.json"
_TENSORBOARD = (r"tensorboard/", r"tensorboard/events\.out\.tfevents\.[^/]+")
START_NAMES = names(r"config\.yaml|(?:env|model)\.json|metrics\.jsonl", *_TENSORBOARD)  # those that a training begins with
RUN_NAMES = names(
    *_ANALYSIS,
    r"config\.yaml|(?:env|model|finished|policy)\.json|metrics\.(?:jsonl|csv)|report\.html",
    r"checkpoints/",
    rf"checkpoints/(?:last|previous|best|damaged|{LEFT_OVER})/",
    rf"checkpoints/[^/]+/(?:(?:model|ema|task)\.safetensors|state\.pt|manifest\.json|{LEFT_OVER})",
    r"eval/",
    rf"eval/(?:{_EVALUATION}|{LEFT_OVER})",
    r"eval/predictions/",
    rf"eval/predictions/(?:{_EVALUATION}|{LEFT_OVER})",
    r"eval/probe/",
    rf"eval/probe/(?:(?:{'|'.join(PROTOCOLS)})(?:-[^/]+)?\.json|features-(?:train|val|test)\.safetensors|{LEFT_OVER})",
    r"eval/robust/",
    rf"eval/robust/(?:(?:{'|'.join(ROBUSTNESS)})\.json|{LEFT_OVER})",
    r"eval/robust/[^/]+-[0-9a-f]{10}/",
    rf"eval/robust/[^/]+-[0-9a-f]{{10}}/(?:[a-z_]+-\d\.json|{LEFT_OVER})",
    *_TENSORBOARD,
)
_OF_RUN = rf"[^/]+-seed-?\d+/(?:{RUN_NAMES.pattern})?"
COMPARISON_NAMES = names(*_ANALYSIS, r"comparison\.json|report\.html", _OF_RUN)


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
