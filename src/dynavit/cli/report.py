"""`dynavit report`: the page of a run or a comparison."""

from pathlib import Path

from .parse import positional


@positional("directory")
def report(directory: Path) -> None:
    """Write the report page of a run or a comparison again, from its files alone, and the metrics of a run as metrics.csv.

    In Python: `dynavit.runs.report.write_report(directory)`.

    Args:
        directory: of a run or a comparison.
    """
    from ..runs.report import write_report

    print(f"report: {write_report(directory)}")
