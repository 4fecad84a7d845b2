"""Grids of runs: every combination of settings, each under several seeds, several at once, and one report."""

import datetime
import itertools
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ..common.files import write_json
from ..common.fits import Range, Seed
from ..common.lock import BusyError
from ..common.registry import nearest_match_error
from .config import TrainConfig, from_plain, to_plain
from .directory import ComparisonDirectory
from .equal_time import check_same_equality, costs_at_equal_time

if TYPE_CHECKING:
    from ..common.data import Data
    from ..engine.progress import Progress

LAST_CHECKPOINT = 20.0  # seconds that a process which was told to stop may take for it


@dataclass
class CompareConfig(TrainConfig):
    """A grid of runs: the options of one run, and what varies.

    Attributes:
        norms: normalisers to compare, such as ln,dtn.
        seeds: each setting is trained under all of them.
        vary: further options and their values: --vary '{"lr": [1e-3, 2e-3], "optim.weight_decay": [0.05, 0.3]}'.
        baseline: the norm that differences are taken to; the first if not given.
        equal: what settings have in common. epochs: all train for --epochs. time: the baseline trains for --epochs, the others
            for as many as fit into its training time. The cost of a step is measured once, side by side, before the first
            run, so let nothing else run then.
        title: of the report.
        processes: runs trained at the same time; the cores are shared among them.
    """

    norms: list[str] | str = field(default_factory=lambda: ["ln", "dtn"])
    seeds: list[Seed] = field(default_factory=lambda: [0, 1, 2])
    vary: dict[str, Any] = field(default_factory=dict)
    baseline: str | None = None
    equal: Literal["epochs", "time"] = "epochs"
    title: str = "Comparison of normalisers"
    processes: Annotated[int, Range(least=1, most=1024)] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.norms, str):
            self.norms = [name.strip() for name in self.norms.split(",") if name.strip()]
        if not self.norms or not self.seeds:
            raise ValueError("a comparison needs at least one norm and one seed")
        if len(set(self.norms)) < len(self.norms) or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"one is given twice: norms {self.norms}, seeds {self.seeds}")
        if self.baseline is None:
            self.baseline = self.norms[0]
        if self.baseline not in self.norms:
            raise nearest_match_error("baseline", self.baseline, self.norms)
        if self.equal == "time" and "epochs" in self.vary:
            raise ValueError("--equal time decides the epochs of each setting; take epochs out of --vary")


@dataclass(frozen=True)
class Setting:
    """One row of the grid: the values that set it apart."""

    values: dict[str, Any]

    @property
    def name(self) -> str:
        others = [f"{name.rpartition('.')[2]}={value}" for name, value in self.values.items() if name != "norm"]
        return ", ".join([str(self.values["norm"]), *others])

    def run_name(self, seed: int) -> str:
        return re.sub(r"[^\w.=+-]+", "-", self.name) + f"-seed{seed}"


def settings_of(config: CompareConfig) -> list[Setting]:
    """All combinations, in the order they are given; norms change slowest."""
    for name, values in config.vary.items():
        if name in ("norm", "seed"):
            raise ValueError(f"vary does not take {name!r}; give --{name}s")
        if not isinstance(values, list) or not values:
            raise ValueError(f"vary: {name} needs a list of values, got {values!r}")
    axes = {"norm": list(config.norms), **config.vary}
    settings = [Setting(dict(zip(axes, values, strict=True))) for values in itertools.product(*axes.values())]
    if len({setting.run_name(0) for setting in settings}) < len(settings):
        raise ValueError(f"vary: two settings would have the same name, among {', '.join(s.name for s in settings)}")
    return settings


def run_config(config: CompareConfig, setting: Setting, seed: int, epochs: float | None = None) -> TrainConfig:
    """The configuration of one run; `epochs`, if given, are those of its setting."""
    fields = to_plain(TrainConfig())
    plain = {name: value for name, value in to_plain(config).items() if name in fields}
    plain["epochs"] = epochs or config.epochs
    for name, value in {**setting.values, "seed": seed}.items():
        *groups, last = name.split(".")
        where = plain
        for group in groups:
            where = where.setdefault(group, {})
        where[last] = value
    threads = max((os.cpu_count() or 1) // config.processes, 1)
    plain["engine"]["threads"] = config.engine.threads or (threads if config.processes > 1 else None)
    return from_plain(TrainConfig, plain)


class Watcher:
    """The events of a comparison. This one shows nothing; see `cli.compare` for one that does."""

    def overview(self, facts: Callable[[], Mapping[str, str]]) -> None: ...

    def begin(self, runs: Sequence[str]) -> None: ...

    def progress(self, run: str, done: int, total: int, text: str) -> None: ...

    def finished(self, run: str, result: Mapping[str, Any] | None, problem: str | None) -> None:
        """`result` is the run's final evaluation."""

    def note(self, text: str) -> None: ...


def compare(
    config: CompareConfig, out: Path, *, overwrite: bool = False, watch: Watcher | None = None, command: str = ""
) -> Path:
    """Train what is not trained yet, measure the cost of each setting, and write the report; returns its path.

    Called again it skips finished runs and resumes others, also with more norms or seeds. A run that fails does not stop the
    others; it is named in comparison.json and in the report.
    """
    from ..norms.factory import norm_class_of
    from .assemble import model_call, open_training_data, task_of_run

    watch, directory = watch or Watcher(), ComparisonDirectory(out)
    settings = settings_of(config)
    for norm in config.norms:
        norm_class_of(norm)  # a name that does not exist is found before hours of training, and so are missing data
    data = open_training_data(config)
    task_of_run(config, data)
    if "model" not in config.vary:
        model_call(config, data)
    for setting in settings:
        run_config(config, setting, config.seeds[0])  # so are options that do not fit
    with directory.alone(make=True):
        _prepare(directory, overwrite)
        return _compare(config, settings, data, directory, watch, command)


def _compare(
    config: CompareConfig,
    settings: Sequence[Setting],
    data: "Data",
    directory: ComparisonDirectory,
    watch: Watcher,
    command: str,
) -> Path:
    from .report import write_report

    summary: dict[str, Any] = {
        "title": config.title,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "varied": ["norm", *config.vary],
        "baseline": settings_of_baseline(config, settings).values,
        "equal": config.equal,
        "settings": [
            {"name": setting.name, "values": setting.values, "runs": [setting.run_name(seed) for seed in config.seeds]}
            for setting in settings
        ],
        "seeds": config.seeds,
        "failures": {},
    }
    check_same_equality(directory, config)
    watch.overview(lambda: _overview(config, settings, data, directory.path))
    epochs: dict[str, float] = {}
    if config.equal == "time":
        baseline = settings_of_baseline(config, settings)
        summary |= costs_at_equal_time(
            directory, config.epochs, baseline, settings, lambda some: _measure(config, some, data, watch)
        )
        epochs = {cost["name"]: cost["epochs"] for cost in summary["cost"]}
    write_json(directory.comparison_file, summary)
    planned = {
        setting.run_name(seed): run_config(config, setting, seed, epochs.get(setting.name))
        for seed in config.seeds
        for setting in settings
    }
    watch.begin(list(planned))
    summary["failures"] = _train_all(planned, directory, config.processes, watch)
    if config.equal == "epochs":
        summary |= _measure(config, settings, data, watch)
    write_json(directory.comparison_file, summary)
    return write_report(directory.path)


def _overview(config: CompareConfig, settings: Sequence[Setting], data: "Data", out: Path) -> dict[str, str]:
    """That of the first run, and how many there are."""
    from ..engine.processes import Processes
    from .assemble import build_model, decided
    from .overview import overview_of_training

    first = decided(run_config(config, settings[0], config.seeds[0]), data)
    facts = overview_of_training(first, data, build_model(first, data)[0], Processes(first.engine), out)
    several = f", {config.processes} at a time" if config.processes > 1 else ""
    facts["norm"] = ", ".join(config.norms)
    seeds = ", ".join(map(str, config.seeds))
    return {"runs": f"{len(settings)} settings under the seeds {seeds}{several}", **facts}


def settings_of_baseline(config: CompareConfig, settings: Sequence[Setting]) -> Setting:
    return next(setting for setting in settings if setting.values["norm"] == config.baseline)


def _prepare(directory: ComparisonDirectory, overwrite: bool) -> None:
    out, known = directory.path, directory.is_comparison()
    if not known and not directory.is_empty():
        raise ValueError(f"{out} exists, is not empty and holds no {directory.comparison_file.name}; choose another --out")
    if known and overwrite:
        directory.clear()


def _train_all(planned: Mapping[str, TrainConfig], out: ComparisonDirectory, processes: int, watch: Watcher) -> dict[str, str]:
    """Run by run, or several at once in processes of their own. Returns what went wrong, by run."""
    failures: dict[str, str] = {}

    def tell(name: str, problem: str | None) -> None:
        if problem is not None:
            failures[name] = problem
        watch.finished(name, out.run(name).final_evaluation(), problem)

    if processes == 1:
        for name, config in planned.items():
            tell(name, _train_one(name, config, out.run(name).path, watch.progress))
        return failures
    left, deaths = dict(planned), Counter[str]()
    while left:
        under_way = _train_in_pool(left, out, processes, watch, tell)
        # A process that is killed, when memory runs out say, takes the pool with it. Its run gets a second chance.
        deaths.update(under_way)
        for name in [name for name in under_way if deaths[name] > 1]:
            del left[name]
            tell(name, "its process died twice, probably out of memory; try fewer --processes")
    return failures


def _train_in_pool(
    left: dict[str, TrainConfig],
    out: ComparisonDirectory,
    processes: int,
    watch: Watcher,
    tell: Callable[[str, str | None], None],
) -> list[str]:
    """Train all that is left, and take it out when it is done. Returns the runs under way when a process died, if one did."""
    from ..engine.worker_pool import WorkerDied, run_jobs

    begun: list[str] = []

    def heard(news: tuple[str, int, int, str]) -> None:
        begun.append(news[0])
        watch.progress(*news)

    def finished(name: str, problem: str | None) -> None:
        del left[name]
        tell(name, problem)

    jobs = {name: (name, config, out.run(name).path) for name, config in left.items()}
    try:
        run_jobs(_train_in_worker, jobs, min(processes, len(left)), heard=heard, finished=finished)
    except WorkerDied:
        return [name for name in dict.fromkeys(begun) if name in left] or list(left)[:processes]
    return []


def _train_one(name: str, config: TrainConfig, out: Path, report: Any) -> str | None:
    """Train, or go on; the reason if it failed."""
    from ..common.metric import Metric
    from ..engine.progress import Progress

    loss = Metric("loss", "loss", better="smaller", digits=3)

    class Report(Progress):
        total = 0

        def begin(self, done: int, total: int) -> None:
            self.total = total
            report(name, done, total, "")

        def logged(self, record: dict[str, Any]) -> None:
            metric = self.metrics[0] if record["kind"] == "eval" and self.metrics else loss
            report(name, record["step"], self.total, f"{metric.label} {metric.text(record.get(metric.name))}")

    try:
        _train_when_free(config, out, Report())
    except Exception as error:  # whatever it is, the other runs go on
        kind = "" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: "
        return kind + " ".join(str(error).split())
    return None


def _train_when_free(config: TrainConfig, out: Path, progress: "Progress") -> None:
    """Workers of a comparison that was killed a moment ago may still be writing their last checkpoints."""
    from .train import train_run

    patience = time.monotonic() + LAST_CHECKPOINT
    while True:
        try:
            train_run(config, out, resume=True, progress=progress)
            return
        except BusyError:
            if time.monotonic() > patience:
                raise
        time.sleep(1)


def _train_in_worker(name: str, config: TrainConfig, out: Path) -> str | None:
    from ..engine.worker_pool import say

    try:
        return _train_one(name, config, out, lambda *news: say(news))
    except (KeyboardInterrupt, SystemExit):  # told to stop; the pool would give this worker the next run
        os._exit(128 + signal.SIGTERM)


def _measure(config: CompareConfig, settings: Sequence[Setting], data: "Data", watch: Watcher) -> dict[str, Any]:
    """Cost of a step of every setting, with its own data, batch, optimiser and precision, and the machine. Settings that cannot
    be built have none."""
    from ..bench.cost import Contestant, training_costs
    from ..bench.machine import describe_machine
    from ..engine.optimiser import make_optimiser
    from ..engine.processes import Processes
    from .assemble import open_training_data, training_task

    watch.note("measuring the cost of a step")
    contestants = {}
    for setting in settings:
        own = run_config(config, setting, config.seeds[0])
        own.engine.threads = config.engine.threads  # nothing else is running now
        try:
            same_data = not any(name == "data" or name.startswith(("data_", "loading.")) for name in config.vary)
            images = data if same_data else open_training_data(own)
            task, loader = training_task(own, images)
            processes = Processes(own.engine)
            task = task.to(processes.device, processes.dtype)
            optimiser = make_optimiser(task, own.optim, processes.device)
        except Exception:
            continue  # its runs failed for the same reason, which is told there
        batch = next(iter(loader.epoch()))[0].to(processes.device, processes.dtype)
        contestants[setting.name] = Contestant(task, batch, optimiser, processes.autocast)
    baseline = settings_of_baseline(config, settings).name
    costs = training_costs(contestants, baseline) if baseline in contestants else []
    return {"cost": costs, "machine": describe_machine()}
