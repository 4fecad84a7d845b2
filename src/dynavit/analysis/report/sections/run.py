"""The sections of a page about one run."""

from collections.abc import Sequence

from ....common.metric import NOTHING, Metric
from ..blocks import Facts, Section, Table, Text
from ..read import Run
from ..words import SPLITS, integer_text, number_text, speeds
from .facts import facts_of, flat, notes_section
from .inside import inside_sections
from .lambdas import lambda_section
from .robustness import robustness_section
from .training import run_training

SPEEDS = ("model, images/s", "with loading, images/s")


def run_sections(run: Run, of_task: Sequence[Section] = ()) -> list[Section]:
    """`of_task`: the sections that only the run's task knows, which stand after the training."""
    return [
        Section("What was run", [*facts_of([run]), Facts(flat(run.environment), "Machine and versions")]),
        results_section(run),
        run_training(run),
        *of_task,
        lambda_section([run], run.inside.kinds),
        robustness_section(run),
        notes_section([run]),
        *inside_sections(run.inside),
    ]


def results_section(run: Run) -> Section:
    """A row for each evaluation, a column for each metric that any of them has."""
    if not run.evaluations:
        return Section("Results", [Text("This run has not been evaluated yet.")])
    found = {metric.name: metric for each in run.evaluations.values() for metric in run.metrics_of(each)}
    metrics: list[Metric] = list(found.values())
    timed = {name: speeds(each) for name, each in run.evaluations.items()}
    # A column for each of the two speeds that some evaluation has measured.
    measured = [column for column in (0, 1) if any(pair[column] is not None for pair in timed.values())]
    rows = [
        [
            name,
            SPLITS.get(each.get("split", ""), each.get("split", NOTHING)),
            each.get("weights", NOTHING),
            integer_text(each.get("samples")),
            *(metric.number(each.get(metric.name)) for metric in metrics),
            *(number_text(timed[name][column], ",.0f") for column in measured),
        ]
        for name, each in run.evaluations.items()
    ]
    header = ["evaluation", "data", "weights", "samples", *(metric.heading for metric in metrics)]
    notes = ["One run has no error bar."] if metrics else []
    return Section(
        "Results",
        [Table("Results of the evaluations", [*header, *(SPEEDS[column] for column in measured)], rows, notes=notes)],
    )
