"""`dynavit eval`: results of a trained model on a split."""

import json as json_
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.fits import AtLeastOne
from ..runs.keep import NotStoredError
from ..runs.subject import Subject, Which
from .next_steps import Step, taken_by, tell_next
from .parse import positional
from .show import print_table

if TYPE_CHECKING:
    from ..common.task import Task


@positional("run")
def evaluate(
    run: Path,
    which: Which,
    split: str | None = None,
    batch_size: AtLeastOne = 256,
    protocol: str | None = None,
    features: str | None = None,
    neighbours: list[int] | None = None,
    probe_epochs: AtLeastOne = 100,
    model: str | None = None,
    trust_pt2: bool = False,
    save_predictions: bool = False,
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Evaluate a trained model: accuracy, per class, calibration, images per second.

    Everything is also written to RUN/eval/SPLIT.json. In place of a run also a bundle, timm:NAME, or a file of weights with
    --model; those need --data, and nothing is written. In Python: `dynavit.evaluate_run(run)`. Errors on corrupted images:
    `dynavit robust`.

    --protocol judges frozen features instead, of any model: by nearest neighbours (knn), by logistic regression on features
    computed once (linear_cached), by linear classifiers trained on augmented images (linear); several with commas. Beside each
    number stand those of raw pixels and of the same network with random weights. Written to RUN/eval/probe/PROTOCOL.json, the
    features beside it. In Python: `dynavit.probe_run(run, ["knn"])`.

    Args:
        run: directory of a run or a bundle, timm:NAME, or a file of weights.
        split: test, val or train; test where there is one, otherwise val, if not given.
        batch_size: images at a time.
        protocol: knn, linear_cached, linear, or several with commas.
        features: of the linear protocols: cls:N or cls_or_mean:N of the last N blocks, with +mean also the mean of patches;
            cls_or_mean:4 if not given, as far as there are blocks.
        neighbours: of knn; 10,20,100,200 if not given.
        probe_epochs: of linear.
        model: for a file of weights: the model they belong to.
        trust_pt2: open a .pt2 bundle, which can run any code of the one who made it; without this it is refused.
        save_predictions: also write every answer to RUN/eval/predictions/SPLIT.json; detections in COCO's form.
        json: print all results as JSON, and nothing else.
        quiet: show no summary, progress or next steps.
    """
    from ..engine.progress import choose_progress
    from ..runs.evaluate import evaluate_run
    from ..runs.foreign import asked_of
    from ..tasks.table import TASKS

    subject = asked_of(run, which, model=model, trust_pt2=trust_pt2)
    if protocol is not None:
        from ..runs.probe import probe_run
        from .show_probe import print_probe

        found = probe_run(
            subject,
            [word.strip() for word in protocol.split(",") if word.strip()],
            features=features,
            split=split,
            neighbours=neighbours,
            epochs=probe_epochs,
            batch_size=batch_size,
            progress=choose_progress(quiet or json),
        )
        if json:
            print(json_.dumps(found))
        else:
            for result in found.values():
                print_probe(run, result)
        for result in found.values():
            if "not_stored" in result:
                raise NotStoredError(result["not_stored"])
        return
    shown = choose_progress(quiet or json)
    result = evaluate_run(subject, split=split, batch_size=batch_size, progress=shown, save_predictions=save_predictions)
    if json:
        print(json_.dumps({name: value for name, value in result.items() if name != "samples_shown"}))
    else:
        task = TASKS[result["task"]]
        _print(run, subject, task, result)
        steps: list[Step] = [
            (["robust", run], "errors on corrupted images"),
            (["analyze", run], "figures of its inside"),
            (["report", run], "the page with these results"),
        ]
        tell_next(*taken_by(task, steps), quiet=quiet or not subject.keeps_results)
    if "not_stored" in result:
        raise NotStoredError(result["not_stored"])


def _print(run: Path, subject: Subject, task: "type[Task]", result: dict[str, Any]) -> None:
    from ..common.metric import Metric

    speed = result["throughput"]
    metrics = [Metric(**metric) for metric in result["metrics"]]
    print_table(
        f"{run} ({subject.checkpoint}, {result['weights']} weights): {result['split']} of {result['data']}, "
        f"{result['samples']} {task.things}",
        ["measure", "value"],
        [
            *([metric.label, metric.text(result[metric.name])] for metric in metrics),
            [f"{task.things}/s of the model at batch {speed['batch_size']}", f"{speed['model_images_per_second']:.0f}"],
            [f"{task.things}/s with loading", f"{speed['images_per_second_with_loading']:.0f}"],
        ],
    )
    for title, header, rows in task.tables(result):
        print_table(title, header, rows)
    if result.get("file") is not None:  # of several processes the first one writes
        print(f"written to {result['file']}")
    if result.get("predictions_file") is not None:
        print(f"predictions written to {result['predictions_file']}")
