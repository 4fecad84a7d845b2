"""Evaluate a run, a bundle or pretrained weights on a split of a data set."""

from os import PathLike
from typing import Any, Unpack

from ..common.task import Evaluator
from ..engine.checkpoint import has_average
from ..engine.evaluate import evaluate
from ..engine.pace import Pace
from ..engine.progress import Progress
from .foreign import asked_of
from .keep import keeping
from .opened import Opened
from .overview import overview_of_opened
from .subject import Subject, WhichOptions

EVAL_BATCH = 256
EXAMINED = 512  # samples that examples are chosen from


def evaluate_run(
    run: str | PathLike[str] | Subject,
    *,
    split: str | None = None,
    batch_size: int = EVAL_BATCH,
    progress: Progress | None = None,
    model: str | None = None,
    trust_pt2: bool = False,
    save_predictions: bool = False,
    **which: Unpack[WhichOptions],
) -> dict[str, Any]:
    """Evaluate a run's model on a split of its own data set or another with the same classes; writes eval/<split>.json.

    In place of a run also a bundle, timm:NAME, or a file of weights with their `model`: these need `data`, and results are only
    returned. Weights with the thousand classes of ImageNet are judged on data whose classes are among them.

    The split is test where there is one, otherwise val, if not given. Several processes share the samples; all of them call
    this. Where nothing can be written, because the run is read-only or another process is writing there, "not_stored" says why.

    Args:
        model: for a file of weights: the name of the model they belong to.
        trust_pt2: open a .pt2 bundle, which can run any code of the one who made it.
        save_predictions: also write every answer to eval/predictions/<split>.json, in the form that is usual for the task;
            "predictions_file" is then its name.
        which: the fields of `Subject`: checkpoint, weights, data (a name, or a data set that is open already), data_dir,
            device, strict.
    """
    progress, subject = progress or Progress(), asked_of(run, which, model=model, trust_pt2=trust_pt2)
    opened = subject.open()
    for note in () if subject.keeps_results else opened.data.notes:
        progress.note(note)
    split = split or opened.final_split
    classes, known = getattr(opened.data, "classes", []), opened.card.classes
    if classes != known:
        progress.note(f"classes have other names than in training: {classes[:3]}... instead of {known[:3]}...")
    if not subject.keeps_results:
        if save_predictions:
            raise ValueError(f"{run} is no run, so there is no directory to save predictions in")
        return _evaluated(opened, split, classes, batch_size, progress)[0]
    main = opened.processes.is_main
    with keeping(subject.directory, main=main) as keeper:
        if keeper.problem is not None:
            progress.note(keeper.problem)
        report, evaluator = _evaluated(opened, split, classes, batch_size, progress)
        name = _name(opened, split)
        if main and save_predictions:
            predictions = evaluator.predictions()
            if predictions is None:
                raise ValueError(f"the task {opened.task.name!r} has no form for its predictions; leave --save-predictions out")
            saved = keeper.keep(lambda: subject.directory.write_predictions(name, predictions))
            report["predictions_file"] = None if saved is None else str(saved)
        if main:
            file = keeper.keep(lambda: subject.directory.write_evaluation(name, report))
            report["file"] = None if file is None else str(file)
    return report if keeper.problem is None else {**report, "not_stored": keeper.problem}


def _evaluated(
    opened: Opened, split: str, classes: list[str], batch_size: int, progress: Progress
) -> tuple[dict[str, Any], Evaluator]:
    """The results, and what counted them."""
    loader = opened.loader(split, batch_size)
    kept = opened.subject.keeps_results
    file = opened.subject.directory.evaluation_file(_name(opened, split)) if kept else None
    progress.overview(lambda: overview_of_opened(opened, split, writes=file))
    evaluator = opened.task.evaluator()
    pace = Pace()
    try:
        results = evaluate(opened.task, loader, opened.processes, progress.note, evaluator, pace, at=progress.evaluating)
    finally:
        progress.end()
    speed = pace.report(opened.processes)
    main = opened.task.main_metric
    source = opened.source
    report = {
        "data": opened.data.name,
        "split": split,
        "checkpoint": source["checkpoint"],
        "weights": source["weights"],
        "step": source["step"],
        "task": opened.task.name,
        "main_metric": main.name if main is not None else None,
        "metrics": [metric.to_dict() for metric in opened.task.metrics],
        **results,
        "samples": evaluator.samples,
        **evaluator.details(),
        **({"classes": classes} if classes else {}),
        # A loader may give fewer at a time than it was asked for.
        "throughput": {"batch_size": getattr(loader, "batch_size", batch_size), **speed},
        "samples_shown": _examples(opened, split),
    }
    return report, evaluator


def _name(opened: Opened, split: str) -> str:
    """Of the result's file: the split, and what is not as usual."""
    subject, parts = opened.subject, []
    if not opened.is_own_data:
        parts.append(opened.data.name.replace("/", "_"))
        parts += [subject.data_dir.name] if subject.data_dir is not None else []
    parts.append(split)
    parts += [subject.checkpoint] if subject.checkpoint != "last" else []
    parts += ["model"] if subject.weights == "model" and has_average(subject.directory.checkpoint(subject.checkpoint)) else []
    parts += ["student"] if subject.weights == "student" else []
    return "-".join(map(str, parts))


def _examples(opened: Opened, split: str) -> list[dict[str, Any]]:
    """From the first samples of the split, the same in every process."""
    (batch,) = next(iter(opened.loader(split, EXAMINED, alone=True).epoch()))
    return opened.task.examples(batch.to(opened.processes.device, opened.processes.dtype), opened.data)
