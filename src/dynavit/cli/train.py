"""`dynavit train`: one run."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..runs.config import TrainConfig, upgraded
from ..runs.directory import RunDirectory
from .next_steps import Step, taken_by, tell_next

if TYPE_CHECKING:
    from ..engine.loop import Summary


def train(
    config_of_run: TrainConfig,
    out: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
) -> None:
    """Train one model, and evaluate it on the test split at the end.

    The options listed first are the everyday ones, dotted ones set the rest; --download and --strict are short for
    --loading.download and --loading.strict. A run that was interrupted, or killed, goes on exactly where its last checkpoint
    is with `dynavit train --out DIR --resume`. Several processes: `torchrun --nproc_per_node=2 -m dynavit train ...`.
    In Python: `dynavit.train_run(dynavit.TrainConfig(...), out)`.

    Args:
        out: directory of the run; runs/MODEL-NORM-DATA-seedN if not given.
        resume: go on with the run in --out; options that are not given are those it began with.
        overwrite: delete the run in --out and begin again.
        quiet: show no summary, progress or next steps.
    """
    from ..engine.progress import choose_progress
    from ..runs.train import train_run

    if resume and out is None:
        raise ValueError("say which run to go on with: --resume needs --out")
    progress = choose_progress(quiet)
    command = ["dynavit", *sys.argv[1:]]
    summary = train_run(config_of_run, out, resume=resume, overwrite=overwrite, progress=progress, command=command)
    if os.environ.get("RANK", "0") == "0":  # one of torchrun's processes is enough to tell
        _tell(summary, quiet)


def options_of_the_run(words: Sequence[str]) -> list[str]:
    """`--resume` begins with the options that the run has stored; the command line may repeat them."""
    words = list(words)
    names = [word.partition("=")[0] for word in words]
    if "--resume" not in names or "--out" not in names:
        return words
    at = names.index("--out")
    out = words[at].partition("=")[2] or (words[at + 1] if at + 1 < len(words) else "")
    if not out or not RunDirectory(out).config_file.is_file():
        return words
    return ["--config", json.dumps(upgraded(RunDirectory(out).read_config())), *words]


train.prepare = options_of_the_run  # type: ignore[attr-defined]


def _tell(summary: "Summary", quiet: bool) -> None:
    from ..analysis.report.read import read_run
    from ..runs.model_files import ModelCard
    from ..runs.report import write_report
    from ..tasks.table import TASKS

    out, task = summary.directory, TASKS[ModelCard.read(summary.directory).task]
    print(f"{out}: {summary.steps} steps")
    run = read_run(out)
    for name, result in run.evaluations.items():
        values = ", ".join(f"{metric.label} {metric.text(result[metric.name])}" for metric in run.metrics_of(result)[:2])
        print(f"  {name}: {values} of {result['samples']} {task.things}")
    page = RunDirectory(out).report_file
    print(f"report: {page if summary.nothing_to_do and page.is_file() else write_report(out)}")
    steps: list[Step] = [
        (["eval", out], "each class, speed and more"),
        (["predict", out, task.example_file], "what it sees in your files"),
        (["analyze", out], "figures of its inside"),
    ]
    if task.leaves_early:
        steps.insert(0, (["calibrate", out, "--accuracy", "0.9"], "when images may leave early"))
    tell_next(*taken_by(task, steps), quiet=quiet)
