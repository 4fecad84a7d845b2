"""Run and comparison directories, and analyses, as they are on disk. A file that has not been written yet is simply absent."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from ...common.files import read_json
from ...common.json_lines import json_lines
from ...common.metric import Metric
from ...common.thinned import Thinned
from ...runs.directory import AnyDirectory, ComparisonDirectory, RunDirectory
from .figures.stored_svg import read_svg
from .shapes import Calibration, ComparisonFile, Evaluation, Index, Probe, check_calibration

# Evaluations name their metrics. Those made before metrics were stored are classifications and have some of these.
LEGACY_METRICS = (
    Metric("top1", "top-1", percent=True),
    Metric("top5", "top-5", percent=True),
    Metric("loss", "loss", "smaller", digits=4),
    Metric("ece", "calibration error", "smaller", percent=True),
)
LEGACY_MAIN = "top1"
LOSS = Metric("loss", "loss", "smaller", digits=4)
OF_TASK = "task:"  # paths of what a task holds beside its model, such as a student of the same kind
LAMBDAS = {"mean": "lambda_mean", "variance": "lambda_var"}  # moment: its name in the log


@dataclass(frozen=True, eq=False)
class Inside:
    """The index of an analysis, and its figures by file name. Empty if there is none."""

    name: str
    path: Path
    index: dict[str, Any]
    figures: dict[str, str]

    @property
    def sections(self) -> list[dict[str, Any]]:
        return self.index.get("sections") or []

    @property
    def kinds(self) -> set[str]:
        return {section["kind"] for section in self.sections}


@dataclass(frozen=True, eq=False)
class Run:
    """One training as its files tell it.

    Attributes:
        path: the directory.
        config: the options.
        environment: machine and versions.
        log: lines of the metrics file.
        evaluations: by name, such as "test" and "val".
        calibration: what early exit gives.
        robust: errors on corrupted images, by kind: "corruptions", "imagenet_c", "imagenet_r", "imagenet_a".
        probes: judgements of frozen features, by protocol.
        inside: the analysis that is shown on the same page.
        finished: the training came to its end.
    """

    name: str
    path: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    log: list[dict[str, Any]]
    evaluations: dict[str, dict[str, Any]]
    calibration: dict[str, Any]
    robust: dict[str, dict[str, Any]]
    probes: dict[str, dict[str, Any]]
    inside: Inside
    finished: bool

    @property
    def seed(self) -> int | None:
        return self.config.get("seed")

    # ---- Results

    @property
    def split(self) -> str:
        """The evaluation that results are about: test, or without one validation; "" if there is none."""
        return _split(self.evaluations)

    @property
    def final(self) -> dict[str, Any]:
        """Results and details of that evaluation; {} if there is none."""
        return self.evaluations.get(self.split, {})

    @staticmethod
    def metrics_of(evaluation: Mapping[str, Any]) -> list[Metric]:
        """Numbers among the results of an evaluation, in the order in which a person reads them. Lists are details."""
        if "metrics" not in evaluation:
            return [metric for metric in LEGACY_METRICS if metric.name in evaluation]
        known = {field.name for field in fields(Metric)}
        metrics = [Metric(**{name: entry[name] for name in known & set(entry)}) for entry in evaluation["metrics"]]
        return [metric for metric in metrics if isinstance(evaluation.get(metric.name), int | float | None)]

    @property
    def main_metric(self) -> Metric | None:
        """The metric that models are judged by. None: its task names none, or there is no evaluation yet to tell it."""
        if not self.evaluations:
            logged = any(LEGACY_MAIN in line for line in self.lines("eval"))
            return LEGACY_METRICS[0] if logged else None
        main = self.final.get("main_metric") if "metrics" in self.final else LEGACY_MAIN
        return next((metric for metric in self.metrics_of(self.final) if metric.name == main), None)

    # ---- Training

    @property
    def weights(self) -> str:
        """Weights whose validation curve is shown: the average where one was kept."""
        return "ema" if any(line.get("weights") == "ema" for line in self.lines("eval")) else "model"

    def lines(self, kind: str) -> Iterator[dict[str, Any]]:
        return (line for line in self.log if line.get("kind") == kind)

    def curve(self, kind: str, value: str) -> dict[float, float]:
        """Epoch to value; validation lines are those of `weights`."""
        wanted = {"train": {}, "eval": {"split": "val", "weights": self.weights}}[kind]
        lines = (line for line in self.lines(kind) if all(line.get(key) == want for key, want in wanted.items()))
        return {line["epoch"]: line[value] for line in lines if isinstance(line.get(value), int | float)}

    def per_head(self, name: str) -> list[tuple[float, dict[str, list[float]]]]:
        """(epoch, {layer: one value for each head}) over training, of layers that log `name`, in the order of the model."""
        records = []
        for line in self.lines("scalars"):
            logged = {layer: values.get(name) or [None] for layer, values in line["values"].items()}
            layers = {layer: heads for layer, heads in logged.items() if None not in heads}  # None: it was not finite
            if layers:
                records.append((float(line["epoch"]), layers))
        return records

    @cached_property
    def lambdas(self) -> dict[str, Any]:
        """λ over training, of the "mean" and the "variance": {"epochs": [...], "layers": {path: [heads of each epoch]}}, None
        for a moment that was not logged; {} if none was. The layers are those at the end."""
        moments: dict[str, Any] = {}
        for moment, logged in LAMBDAS.items():
            records = self.per_head(logged)
            layers = [layer for layer in records[-1][1] if not layer.startswith(OF_TASK)] if records else []
            records = [record for record in records if set(layers) <= set(record[1])]
            paths = {layer: [values[layer] for _, values in records] for layer in layers}
            records = records if layers else []
            moments[moment] = {"epochs": [epoch for epoch, _ in records], "layers": paths} if records else None
        return moments if any(moments.values()) else {}


@dataclass(frozen=True, eq=False)
class Setting:
    """One row of a comparison: the same options under several seeds. `planned` counts runs, also those not begun."""

    name: str
    values: dict[str, Any]
    runs: list[Run]
    planned: int
    cost: dict[str, Any]

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs if run.finished]

    def evaluated(self, split: str) -> list[Run]:
        return [run for run in self.runs if split in run.evaluations]

    def results(self, split: str, value: str) -> dict[int, float]:
        """Seed to result, of the runs that were evaluated on a split."""
        found = {run.seed: run.evaluations[split].get(value) for run in self.evaluated(split)}
        return {seed: result for seed, result in found.items() if seed is not None and isinstance(result, int | float)}


@dataclass(frozen=True, eq=False)
class Comparison:
    """`baseline` is the setting that differences are taken to, if there is one; `failures` says why runs failed, by name."""

    title: str
    created: str
    command: str
    varied: list[str]
    baseline: Setting | None
    settings: list[Setting]
    seeds: list[int]
    machine: dict[str, Any]
    failures: dict[str, str]
    inside: Inside

    @property
    def runs(self) -> list[Run]:
        return [run for setting in self.settings for run in setting.runs]

    @cached_property
    def split(self) -> str:
        """The split that results are about: the test split as soon as one run has been evaluated on it."""
        return _split({name: {} for run in self.runs for name in run.evaluations}) or "test"

    @cached_property
    def main_metric(self) -> Metric | None:
        """The metric that settings are judged by. None: their task names none, or no run tells it yet."""
        evaluated = [run for run in self.runs if self.split in run.evaluations]
        return next((metric for run in evaluated or self.runs if (metric := run.main_metric)), None)

    @property
    def shown_metric(self) -> Metric:
        """The main metric, or without one the loss, which is shown and not judged by."""
        return self.main_metric or LOSS

    def results(self, setting: Setting) -> dict[int, float]:
        """Seed to the shown metric."""
        return setting.results(self.split, self.shown_metric.name)

    def series(self, setting: Setting) -> int:
        """The number of its colour: the baseline is -1 and drawn in ink, the others are counted from 0."""
        others = [each for each in self.settings if each is not self.baseline]
        return -1 if setting is self.baseline else others.index(setting)


def _split(evaluations: dict[str, Any]) -> str:
    return next((name for name in ("test", "val") if name in evaluations), next(iter(evaluations), ""))


def read_directory(directory: str | Path) -> Run | Comparison | Inside:
    directory = Path(directory)
    if not directory.is_dir():
        raise FileNotFoundError(f"{directory}: there is no such directory; give that of a run or a comparison")
    run, comparison = RunDirectory(directory), ComparisonDirectory(directory)
    if comparison.is_comparison():
        return read_comparison(directory)
    if run.is_run():
        return read_run(directory)
    if run.analysis_index.is_file():
        return read_inside(directory)
    raise ValueError(
        f"{directory}: neither a comparison (no {comparison.comparison_file.name}) nor a run (no {run.config_file.name}, no "
        f"{run.metrics_file.name}), nor has it an analysis (no {run.analysis_index.relative_to(directory)}); give a directory "
        "that `dynavit train`, `compare` or `analyze` wrote"
    )


def read_run(directory: str | Path) -> Run:
    files = RunDirectory(directory)
    evaluations = {file.stem: _json(file, Evaluation) for file in files.evaluation_files()}
    return Run(
        name=files.path.resolve().name,
        path=files.path,
        config=_yaml(files.config_file),
        environment=_json(files.env_file),
        log=_log(files.metrics_file),
        evaluations=evaluations,
        calibration=read_calibration(files.calibration_file),
        robust={file.stem: _json(file) for file in files.robustness_files()},
        probes={file.stem: _json(file, Probe) for file in files.probe_files()},
        inside=read_inside(directory),
        finished=bool(evaluations) or files.finished_file.is_file(),
    )


def read_inside(directory: str | Path) -> Inside:
    files = AnyDirectory(directory)
    index = _json(files.analysis_index, Index)
    names = [figure["svg"] for section in index.get("sections") or [] for figure in section["figures"]]
    there = {name: file for name in names if (file := files.figure_file(name)).is_file()}
    figures = {name: read_svg(file) for name, file in there.items()}
    return Inside(files.path.resolve().name, files.path, index, figures)


def read_comparison(directory: str | Path) -> Comparison:
    files = ComparisonDirectory(directory)
    text = _json(files.comparison_file, ComparisonFile)
    for name in (name for entry in text["settings"] for name in entry["runs"]):
        if Path(name).name != name:
            raise ValueError(f"{files.comparison_file} names the run {name!r}; runs of a comparison stand in its directory")
    costs = {cost["name"]: cost for cost in text.get("cost") or []}
    settings = [
        Setting(
            name=entry["name"],
            values=entry["values"],
            runs=[read_run(path) for run in entry["runs"] if (path := files.run(run).path).is_dir()],
            planned=len(entry["runs"]),
            cost=costs.get(entry["name"], {}),
        )
        for entry in text["settings"]
    ]
    wanted = text.get("baseline") or {}
    return Comparison(
        title=text.get("title") or files.path.resolve().name,
        created=text.get("created", ""),
        command=text.get("command", ""),
        varied=text["varied"],
        baseline=next((s for s in settings if wanted and wanted.items() <= s.values.items()), None),
        settings=settings,
        seeds=text.get("seeds") or [],
        machine=text.get("machine") or {},
        failures=text.get("failures") or {},
        inside=read_inside(directory),
    )


def read_calibration(file: Path) -> dict[str, Any]:
    """What `dynavit calibrate` wrote; {} if it has not been called."""
    found = _json(file, Calibration)
    with named(file):
        if found:
            check_calibration(found)
    return found


@contextmanager
def named(file: Path) -> Iterator[None]:
    """A ValueError inside is about this file."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}; remove it or write it again") from error


def _json(file: Path, kind: Any = dict[str, Any]) -> dict[str, Any]:
    """{} for a file that is not there."""
    try:
        return read_json(file, kind)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{error}; remove it or write it again") from error


def _yaml(file: Path) -> dict[str, Any]:
    try:
        return _mapping(file, yaml.safe_load(file.read_text(encoding="utf-8")) or {})
    except FileNotFoundError:
        return {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{file}: this is not the YAML it should be ({error}); remove it or write it again") from error


def _mapping(file: Path, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"names and values expected, found a {type(value).__name__}")
    return value


def _log(file: Path) -> list[dict[str, Any]]:
    """Its whole lines, and a note about the others. Of a kind that is more than a page can show, evenly some of them."""
    thinned: dict[str, Thinned[dict[str, Any]]] = {}
    damaged = []
    for number, line in enumerate(json_lines(file), 1):
        if line is None:
            damaged.append(str(number))
        else:  # averaged weights are evaluated beside the others: each its own curve
            thinned.setdefault(f"{line.get('kind')} {line.get('weights')} {line.get('split')}", Thinned()).add(line)
    kept = [line for kind in thinned.values() for line in kind.items()]
    about = f"damaged lines of {file.name} are left out, {len(damaged)} in all: number {', '.join(damaged[:5])}"
    return [*kept, *([{"kind": "note", "text": about}] if damaged else [])]
