"""Run and comparison directories, and analyses, as they are on disk. Whatever has not been written yet is simply absent."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True, eq=False)
class Inside:
    """What `analysis/index.json` tells about the inside of models, and its figures by file name. Empty if there is none."""

    name: str
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
    """One training: its options, the machine, its log, its evaluations by name ("test", "val"), and what early exit gives."""

    name: str
    config: dict[str, Any]
    environment: dict[str, Any]
    metrics: list[dict[str, Any]]
    evaluations: dict[str, dict[str, Any]]
    calibration: dict[str, Any]
    robust: dict[str, dict[str, Any]]  # by kind: "corruptions", "imagenet_c", "imagenet_r", "imagenet_a"
    inside: Inside

    @property
    def seed(self) -> int | None:
        return self.config.get("seed")

    @property
    def weights(self) -> str:
        """Whose validation curve to show: the average's where one was kept."""
        return "ema" if any(line.get("weights") == "ema" for line in self.lines("eval")) else "model"

    def lines(self, kind: str) -> Iterator[dict[str, Any]]:
        return (line for line in self.metrics if line.get("kind") == kind)

    def curve(self, kind: str, value: str) -> dict[float, float]:
        """Epoch to value; validation lines are those of `weights`."""
        wanted = {"train": {}, "eval": {"split": "val", "weights": self.weights}}[kind]
        lines = (line for line in self.lines(kind) if all(line.get(key) == want for key, want in wanted.items()))
        return {line["epoch"]: line[value] for line in lines if line.get(value) is not None}

    def per_head(self, name: str) -> list[tuple[float, dict[str, list[float]]]]:
        """(epoch, {layer: one value for each head}) over training, of layers that log `name`, in the order of the model."""
        records = []
        for line in self.lines("scalars"):
            logged = {layer: values.get(name) or [None] for layer, values in line["values"].items()}
            layers = {layer: heads for layer, heads in logged.items() if None not in heads}  # None: it was not finite
            if layers:
                records.append((float(line["epoch"]), layers))
        return records


@dataclass(frozen=True, eq=False)
class Setting:
    """One row of a comparison: the same options under several seeds. `planned` counts runs, also those not begun."""

    name: str
    values: dict[str, Any]
    runs: list[Run]
    planned: int
    cost: dict[str, Any]

    def finished(self, split: str) -> list[Run]:
        return [run for run in self.runs if split in run.evaluations]

    def results(self, split: str, value: str) -> dict[int, float]:
        """Seed to result, of the finished runs."""
        found = {run.seed: run.evaluations[split].get(value) for run in self.finished(split)}
        return {seed: result for seed, result in found.items() if seed is not None and result is not None}


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
    def split(self) -> str:
        """The split that results are about: the test split as soon as one run has been evaluated on it."""
        return (
            "val"
            if not any(s.finished("test") for s in self.settings) and any(s.finished("val") for s in self.settings)
            else "test"
        )

    @property
    def runs(self) -> list[Run]:
        return [run for setting in self.settings for run in setting.runs]


def read_directory(directory: str | Path) -> Run | Comparison | Inside:
    directory = Path(directory)
    if not directory.is_dir():
        raise FileNotFoundError(f"{directory}: there is no such directory; give that of a run or a comparison")
    if (directory / "comparison.json").is_file():
        return read_comparison(directory)
    if (directory / "config.yaml").is_file() or (directory / "metrics.jsonl").is_file():
        return read_run(directory)
    if (directory / "analysis" / "index.json").is_file():
        return read_inside(directory)
    raise ValueError(
        f"{directory}: neither a comparison (no comparison.json) nor a run (no config.yaml, no metrics.jsonl), nor has it an "
        "analysis (no analysis/index.json); give a directory that `dynavit train`, `compare` or `analyze` wrote"
    )


def read_run(directory: Path) -> Run:
    return Run(
        name=directory.resolve().name,
        config=_yaml(directory / "config.yaml"),
        environment=_json(directory / "env.json"),
        metrics=_json_lines(directory / "metrics.jsonl"),
        evaluations={file.stem: _json(file) for file in sorted((directory / "eval").glob("*.json"))},
        calibration=_json(directory / "analysis" / "calibration.json"),
        robust={file.stem: _json(file) for file in sorted((directory / "eval" / "robust").glob("*.json"))},
        inside=read_inside(directory),
    )


def read_inside(directory: Path) -> Inside:
    index = _json(directory / "analysis" / "index.json")
    names = [figure["svg"] for section in index.get("sections") or [] for figure in section["figures"]]
    files = {name: directory / "analysis" / Path(name).name for name in names}
    figures = {name: file.read_text(encoding="utf-8") for name, file in files.items() if file.is_file()}
    return Inside(directory.resolve().name, index, figures)


def read_comparison(directory: Path) -> Comparison:
    file = directory / "comparison.json"
    text = _json(file)
    if missing := {"varied", "settings"} - set(text):
        raise ValueError(f"{file}: not a comparison, {' and '.join(sorted(missing))} missing; run `dynavit compare` again")
    costs = {cost["name"]: cost for cost in text.get("cost") or []}
    settings = [
        Setting(
            name=entry["name"],
            values=entry["values"],
            runs=[read_run(directory / run) for run in entry["runs"] if (directory / run).is_dir()],
            planned=len(entry["runs"]),
            cost=costs.get(entry["name"], {}),
        )
        for entry in text["settings"]
    ]
    wanted = text.get("baseline") or {}
    return Comparison(
        title=text.get("title") or directory.resolve().name,
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


def _json(file: Path) -> dict[str, Any]:
    """{} for a file that is not there."""
    try:
        return _mapping(file, json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{file}: this is not the JSON it should be ({error}); remove it or write it again") from error


def _yaml(file: Path) -> dict[str, Any]:
    try:
        return _mapping(file, yaml.safe_load(file.read_text(encoding="utf-8")) or {})
    except FileNotFoundError:
        return {}
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{file}: this is not the YAML it should be ({error}); remove it or write it again") from error


def _mapping(file: Path, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"names and values expected, found a {type(value).__name__}")
    return value


def _json_lines(file: Path) -> list[dict[str, Any]]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return []
    parsed = []
    for number, line in enumerate(lines[:-1], 1):  # what follows the last line end is still being written
        try:
            parsed.append(_mapping(file, json.loads(line)))
        except ValueError as error:
            raise ValueError(f"{file}:{number}: this line is not the JSON it should be ({error}); remove it") from error
    return parsed
