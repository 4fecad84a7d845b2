"""`dynavit eval`: results of a trained model on a split."""

import json as json_
from pathlib import Path
from typing import Any

from ..runs.keep import NotStoredError
from ..runs.subject import Subject, Which
from .parse import positional
from .show import print_table


@positional("run")
def evaluate(run: Path, which: Which, split: str | None = None, batch_size: int = 256, json: bool = False) -> None:
    """Evaluate a trained model: accuracy, per class, calibration, images per second.

    Everything is also written to RUN/eval/SPLIT.json. In Python: `dynavit.evaluate_run(run)`. Errors on corrupted images:
    `dynavit robust`.

    Args:
        run: directory of a run.
        split: test, val or train; test where there is one, otherwise val, if not given.
        batch_size: images at a time.
        json: print all results as JSON.
    """
    from ..engine.progress import choose_progress
    from ..runs.evaluate import evaluate_run

    subject = Subject.of(run, which)
    result = evaluate_run(subject, split=split, batch_size=batch_size, progress=choose_progress(quiet=json))
    if json:
        print(json_.dumps({name: value for name, value in result.items() if name != "samples_shown"}))
    else:
        _print(run, subject, result)
    if "not_stored" in result:
        raise NotStoredError(result["not_stored"])


def _print(run: Path, subject: Subject, result: dict[str, Any]) -> None:
    from ..common.metric import Metric
    from ..tasks.table import TASKS

    speed = result["throughput"]
    metrics = [Metric(**metric) for metric in result["metrics"]]
    print_table(
        f"{run} ({subject.checkpoint}, {result['weights']} weights): {result['split']} of {result['data']}, "
        f"{result['samples']} images",
        ["measure", "value"],
        [
            *([metric.label, metric.text(result[metric.name])] for metric in metrics),
            [f"images/s of the model at batch {speed['batch_size']}", f"{speed['model_images_per_second']:.0f}"],
            ["images/s with loading", f"{speed['images_per_second_with_loading']:.0f}"],
        ],
    )
    for title, header, rows in TASKS[result["task"]].tables(result):
        print_table(title, header, rows)
    if result["file"] is not None:
        print(f"written to {result['file']}")
