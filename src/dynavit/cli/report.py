"""`dynavit report`: the page of a run or a comparison."""

from pathlib import Path

from .parse import positional


@positional("directory")
def report(directory: Path, out: Path | None = None) -> None:
    """Write the report page of a run or a comparison again, from its files alone, and the metrics of a run as metrics.csv.

    In Python: `dynavit.runs.report.write_report(directory)`.

    Args:
        directory: of a run or a comparison.
        out: write the page to this file and nothing into the directory, where a training may still be writing.
    """
    from ..runs.report import write_report

    print(f"report: {write_report(directory, out)}")
