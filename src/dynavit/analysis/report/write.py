"""`report.html`, from the files of a run, a comparison or an analysis and nothing else."""

from pathlib import Path

from ...common.files import write_text
from .page import render
from .read import Comparison, Inside, read_directory
from .sections.comparison import comparison_sections
from .sections.inside import inside_sections
from .sections.run import run_sections


def write_report(directory: str | Path) -> Path:
    """Write the page of a run, a comparison or an analysis of several runs into its directory and return where it is."""
    found = read_directory(directory)
    if isinstance(found, Comparison):
        page = render(found.title, found.created.replace("T", " "), comparison_sections(found))
    elif isinstance(found, Inside):
        created = str(found.index.get("created", "")).replace("T", " ")
        page = render(found.name, created, inside_sections(found))
    else:
        page = render(found.name, str(found.environment.get("date", "")).replace("T", " "), run_sections(found))
    path = Path(directory) / "report.html"
    write_text(path, page)
    return path
