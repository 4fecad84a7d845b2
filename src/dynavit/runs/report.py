"""The page of a run, a comparison or an analysis, with the sections that the run's task brings."""

from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..analysis.report import write_report as write_page
from .directory import RunDirectory
from .metrics_csv import write_metrics_csv

if TYPE_CHECKING:
    from ..analysis.report.blocks import Section
    from ..analysis.report.read import Comparison, Run
    from ..common.task import Task


def write_report(directory: str | PathLike[str], out: str | PathLike[str] | None = None) -> Path:
    """Write report.html from the files in a directory and return where it is; beside that of a run also metrics.csv.

    Args:
        out: write the page to this file instead, and nothing into the directory; also while another process writes there.
    """
    if out is not None:
        return write_page(Path(directory), sections_of_task, comparison_sections_of_task, Path(out))
    files = RunDirectory(directory)
    with files.alone():
        page = write_page(files.path, sections_of_task, comparison_sections_of_task)
        if files.metrics_file.is_file():
            write_metrics_csv(directory)
    return page


def task_of(places: Iterable[Path]) -> "type[Task] | None":
    """The task of the first of these directories that holds a run; None if none has begun, or it is not registered here."""
    from ..tasks.table import TASKS
    from .model_files import ModelCard

    begun = next((place for place in places if RunDirectory(place).card_file.is_file()), None)
    if begun is None or (name := ModelCard.read(begun).task) not in TASKS:
        return None
    return TASKS[name]


def comparison_sections_of_task(comparison: "Comparison") -> "Sequence[Section]":
    """The sections about all runs of a comparison that their task brings; none if it is not registered here."""
    task = task_of(run.path for run in comparison.runs)
    return [] if task is None else task.comparison_sections(comparison)


def sections_of_task(run: "Run") -> Sequence[Any]:
    """The task's own sections of the page; a note if the task is a guest whose file was not named."""
    from ..analysis.report import Notes, Section
    from ..tasks.table import TASKS
    from .model_files import ModelCard

    if not RunDirectory(run.path).card_file.is_file():
        return []  # it has not begun
    name = ModelCard.read(run.path).task
    if name not in TASKS:
        note = f"sections of the task {name!r} are left out: it is not registered here; name its file with --plugin FILE.py"
        return [Section("Task", [Notes([note])])]
    return TASKS[name].report_sections(run)
