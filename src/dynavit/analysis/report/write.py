"""Write the page of a run, a comparison or an analysis, from its files and nothing else."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ...common.files import write_text
from ...runs.directory import AnyDirectory
from .blocks import Section
from .page import render
from .read import Comparison, Inside, Run, read_directory
from .sections.comparison import comparison_sections, example_run
from .sections.inside import inside_sections
from .sections.run import run_sections

SectionsOf = Callable[[Run], Sequence[Section]]
SectionsOfComparison = Callable[[Comparison], Sequence[Section]]


def write_report(
    directory: str | Path,
    sections_of: SectionsOf | None = None,
    sections_of_comparison: SectionsOfComparison | None = None,
    out: Path | None = None,
) -> Path:
    """Write the page into the directory of a run, a comparison or an analysis of several runs, and return its path.

    Args:
        out: write it to this file instead.
        sections_of: sections that only the run's task knows, such as confusion; none if not given. A comparison shows those of
            one run, see `sections.comparison.example_run`.
        sections_of_comparison: sections that only the task knows and that are about all runs of a comparison; they come first.
    """
    found = read_directory(directory)
    if isinstance(found, Comparison):
        example = example_run(found)
        # It is shown on the page of the comparison, with the comparison's analysis.
        own = list(sections_of_comparison(found)) if sections_of_comparison else []
        own += sections_of(replace(example, inside=found.inside)) if sections_of and example else []
        title, date, sections = found.title, found.created, comparison_sections(found, own)
    elif isinstance(found, Inside):
        title, date, sections = found.name, found.index.get("created", ""), inside_sections(found)
    else:
        own = list(sections_of(found)) if sections_of else []
        title, date, sections = found.name, found.environment.get("date", ""), run_sections(found, own)
    path = out or AnyDirectory(directory).report_file
    write_text(path, render(title, str(date).replace("T", " "), sections))
    return path
