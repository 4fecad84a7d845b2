"""The self-contained HTML page of a run, a comparison or an analysis, made from its files alone."""

from .write import write_report as write_report
