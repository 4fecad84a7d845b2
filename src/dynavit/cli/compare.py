"""`dynavit compare`: a grid of runs and its report."""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..common.labelled import labelled_lines
from ..runs.compare import CompareConfig, Watcher
from .next_steps import Step, taken_by, tell_next
from .show import print_table


def compare(config_of_grid: CompareConfig, out: Path, overwrite: bool = False, quiet: bool = False) -> None:
    """Train several settings under several seeds, and report means, errors and costs.

    Takes every option of `dynavit train` too (its norm and seed are replaced by norms and seeds). Called again with the same
    --out it skips finished runs and resumes the others. The page is OUT/report.html. In Python: `dynavit.runs.compare.compare`.

    Args:
        out: directory of the comparison.
        overwrite: delete what is in --out and begin again.
        quiet: show no summary, progress or next steps.
    """
    from ..analysis.report.blocks import Table
    from ..analysis.report.read import read_comparison
    from ..analysis.report.table import comparison_table, table_notes
    from ..runs.compare import compare
    from ..runs.report import comparison_sections_of_task, task_of

    with show_runs(quiet) as watch:
        page = compare(config_of_grid, out, overwrite=overwrite, watch=watch, command=shlex.join(["dynavit", *sys.argv[1:]]))
    comparison = read_comparison(out)
    print_table(config_of_grid.title, *comparison_table(comparison))
    for note in table_notes(comparison):
        print(note)
    for table in (block for section in comparison_sections_of_task(comparison) for block in section.blocks):
        if isinstance(table, Table):
            print_table(table.label, list(table.header), [list(row) for row in table.rows])
            for note in table.notes:
                print(note)
    print(f"report: {page}")
    steps: list[Step] = [
        (["analyze", out], "their insides side by side"),
        (["robust", out], "errors on corrupted images"),
    ]
    tell_next(*taken_by(task_of(run.path for run in comparison.runs), steps), quiet=quiet)
    if watch.failed:
        raise ValueError(f"{len(watch.failed)} of {watch.planned} runs failed: " + "; ".join(watch.failed))


def _outcome(result: Mapping[str, Any] | None) -> str:
    """The main metric of a run's final evaluation."""
    from ..analysis.report.read import Run

    if result is None:
        return "done, with nothing to evaluate it on"
    metrics = Run.metrics_of(result)
    return f"{result['split']} {metrics[0].label} {metrics[0].text(result[metrics[0].name])}" if metrics else "done"


class Shown(Watcher):
    """Counts runs; subclasses show them."""

    def __init__(self) -> None:
        self.planned, self.ended, self.failed = 0, 0, list[str]()

    def __enter__(self) -> "Shown":
        return self

    def __exit__(self, *problem: object) -> None: ...

    def overview(self, facts: Callable[[], Mapping[str, str]]) -> None:
        for line in labelled_lines(facts()):
            self.say(line)

    def begin(self, runs: Sequence[str]) -> None:
        self.planned = len(runs)

    def finished(self, run: str, result: Mapping[str, Any] | None, problem: str | None) -> None:
        self.ended += 1
        if problem is not None:
            self.failed.append(f"{run}: {problem}")
        self.say(f"[{self.ended}/{self.planned}] {run}: {_outcome(result) if problem is None else f'failed: {problem}'}")

    def note(self, text: str) -> None:
        self.say(text)

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class Bars(Shown):
    """A bar for all runs, and one for each that is being trained."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        super().__init__()
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
        times = (TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[text]}"))
        self.bars = Progress(*columns, *times, console=Console(stderr=True), refresh_per_second=4)
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> "Bars":
        self.bars.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.bars.stop()

    def begin(self, runs: Sequence[str]) -> None:
        super().begin(runs)
        self.all = self.bars.add_task("all runs", total=len(runs), text="")

    def progress(self, run: str, done: int, total: int, text: str) -> None:
        if run not in self.tasks:
            self.tasks[run] = self.bars.add_task(run, total=total, text=text)
        self.bars.update(self.tasks[run], completed=done, text=text)

    def finished(self, run: str, result: Mapping[str, Any] | None, problem: str | None) -> None:
        super().finished(run, result, problem)
        if run in self.tasks:
            self.bars.remove_task(self.tasks.pop(run))
        self.bars.update(self.all, completed=self.ended)

    def say(self, text: str) -> None:
        self.bars.console.print(text, markup=False, highlight=False)


class Silent(Shown):
    """Shows nothing, and counts."""

    def overview(self, facts: Callable[[], Mapping[str, str]]) -> None: ...

    def say(self, text: str) -> None: ...


def show_runs(quiet: bool = False) -> Shown:
    return Silent() if quiet else Bars() if sys.stderr.isatty() else Shown()
