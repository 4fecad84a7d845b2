"""The self-contained HTML page of a run, a comparison or an analysis, made from its files alone.

Tasks, also those in a user's own file, add sections to it; see `blocks` for an example.
"""

from .blocks import Block, Facts, Figure, Figures, Notes, Picture, Pictures, Sample, Samples, Section, Table, Text
from .read import Run
from .write import write_report

__all__ = [
    "Block",
    "Facts",
    "Figure",
    "Figures",
    "Notes",
    "Picture",
    "Pictures",
    "Run",
    "Sample",
    "Samples",
    "Section",
    "Table",
    "Text",
    "write_report",
]
