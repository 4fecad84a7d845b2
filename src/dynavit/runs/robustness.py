"""Error under corruption, and on real collections of odd images.

In the run's directory for robustness:
<data>-<key>/<corruption>-<severity>.json   one error, written when it is measured and not measured again; the key stands for
                                            everything it depends on
corruptions.json                            the last evaluation summed up: means, the gap to clean images, mCE
imagenet_c.json                             the same with the files of ImageNet-C
imagenet_r.json, imagenet_a.json            accuracy among the 200 classes of these
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from ..analysis.measures.corruption_error import ALEXNET, ALEXNET_CLEAN, summarise
from ..analysis.report.read import read_comparison
from ..common.files import read_json, write_json
from ..common.lock import BusyError
from ..common.registry import nearest_match_error
from ..common.task import Task
from ..data.corruptions import CORRUPTIONS, SEVERITIES
from ..data.folder import some
from ..data.imagenet_variants import class_numbers, corruption_folders, is_imagenet, open_variant
from ..engine.evaluate import evaluate
from ..engine.progress import Progress
from ..engine.worker_pool import run_jobs, say
from ..tasks.classification import Classification
from .corrupted import CorruptedRun, Measured, Question, fingerprint_of, which_weights
from .directory import ComparisonDirectory, RunDirectory
from .evaluate import EVAL_BATCH
from .model_files import ModelCard
from .overview import overview_of_opened
from .subject import Subject, WhichOptions

CLEAN = "clean"  # measured like a corruption, at severity 0
ALEXNET_NAME = "alexnet"


def evaluate_robust(
    run: str | PathLike[str] | Subject,
    *,
    split: str | None = None,
    corruptions: Sequence[str] | None = None,
    severities: Sequence[int] = SEVERITIES,
    baseline: str | PathLike[str] | None = None,
    exact: bool = False,
    seed: int = 0,
    limit: int | None = None,
    imagenet_c: Path | None = None,
    imagenet_r: Path | None = None,
    imagenet_a: Path | None = None,
    processes: int = 1,
    batch_size: int = EVAL_BATCH,
    progress: Progress | None = None,
    **which: Unpack[WhichOptions],
) -> dict[str, dict[str, Any]]:
    """Measure errors under corruption; returns {"corruptions": ...} and what else was asked for, as written to RUN/eval/robust.

    What was measured before, with the same weights on the same images, is not measured again. Under torchrun the processes
    share the images, and all of them call this.

    Args:
        split: test where there is one, otherwise val, if not given.
        corruptions: names; all 15 if not given, or none if only `imagenet_r` or `imagenet_a` is wanted.
        baseline: what mCE compares with: a run, which is measured too where that is missing, or "alexnet", its published
            errors; those are the default for ImageNet's classes.
        exact: corrupt with the code of the `[robust]` extra.
        seed: of the corruptions.
        limit: use only so many images, evenly over the split.
        imagenet_c, imagenet_r, imagenet_a: folders of these collections; the first replaces computed corruptions.
        processes: that many corruptions at the same time, sharing the cores.
        which: the fields of `Subject`: checkpoint, weights, data, data_dir, device, strict.
    """
    names = _checked(corruptions, severities, limit, processes)
    if imagenet_c is not None and exact:
        raise ValueError(
            "exact corruptions are computed, those of an ImageNet-C folder are there already; leave one of them out"
        )
    progress = progress or Progress()
    question = Question(
        subject=Subject.of(run, which),
        split=split,
        loading=None,
        exact=exact,
        seed=seed,
        limit=limit,
        imagenet_c=imagenet_c,
        batch_size=batch_size,
    )
    variants = {"imagenet_r": imagenet_r, "imagenet_a": imagenet_a}
    results: dict[str, dict[str, Any]] = {}
    if corruptions is not None or imagenet_c is not None or not any(variants.values()):
        kind = "corruptions" if imagenet_c is None else "imagenet_c"
        results[kind] = _corruptions(question, names, sorted(set(severities)), baseline, processes, progress)
    elif baseline is not None:
        raise ValueError("a baseline is for corruptions, and none are evaluated; name some with --corruptions")
    for variant, folder in variants.items():
        if folder is not None:
            results[variant] = _variant(question, variant, folder, progress)
    return results


def evaluate_robust_runs(
    runs: Sequence[str | PathLike[str]], *, baseline: str | PathLike[str] | None = None, **options: Any
) -> tuple[dict[Path, dict[str, dict[str, Any]]], list[Path]]:
    """`evaluate_robust` of several runs, and their pages; a comparison stands for its finished runs.

    Args:
        baseline: of all runs. If not given, a run of a comparison is compared with the comparison's baseline under the same
            seed, and other runs with the first one, unless their classes are ImageNet's.
        options: as for `evaluate_robust`.
    """
    from .report import write_report

    chosen: dict[Path, Path | str | None] = {}
    for each in map(Path, runs):
        chosen |= _with_baselines(each) if ComparisonDirectory(each).is_comparison() else {each: None}
    if not chosen:
        raise ValueError("there is no finished run to evaluate" if runs else "give a directory of a run, such as runs/x")
    single = [Path(each) for each in runs if Path(each) in chosen]
    for run in single[1:]:
        if not is_imagenet(ModelCard.read(run).classes):
            chosen[run] = single[0]
    results = {run: evaluate_robust(run, baseline=baseline or its, **options) for run, its in chosen.items()}
    pages = []
    for directory in (*results, *(Path(each) for each in runs if ComparisonDirectory(each).is_comparison())):
        try:
            pages.append(write_report(directory))
        except BusyError as error:  # a comparison that is still training writes its page itself
            options.get("progress", Progress()).note(f"no page was written: {error}")
    return results, pages


def _with_baselines(comparison: Path) -> dict[Path, Path | str | None]:
    """The finished runs of a comparison, baselines first, each with the baseline's run of the same seed."""
    found = read_comparison(comparison)
    directory = ComparisonDirectory(comparison)
    of_seed = {run.seed: directory.run(run.name) for run in (found.baseline.runs if found.baseline else ())}
    of_seed = {seed: run for seed, run in of_seed.items() if run.finished() is not None}
    chosen: dict[Path, Path | str | None] = {run.path: None for run in of_seed.values()}
    for run in found.runs:
        here = directory.run(run.name)
        if here.finished() is not None and here.path not in chosen:
            chosen[here.path] = of_seed[run.seed].path if run.seed in of_seed else None
    return chosen


def read_robust(run: str | PathLike[str], kind: str = "corruptions") -> dict[str, Any] | None:
    """The result that `evaluate_robust` wrote last, or None."""
    file = RunDirectory(run).robustness_file(kind)
    return read_json(file) if file.is_file() else None


def _checked(corruptions: Sequence[str] | None, severities: Sequence[int], limit: int | None, processes: int) -> list[str]:
    """The wanted corruptions in the usual order."""
    wanted = CORRUPTIONS if corruptions is None else corruptions
    for name in wanted:
        if name not in CORRUPTIONS:
            raise nearest_match_error("corruption", name, CORRUPTIONS)
    if not wanted:
        raise ValueError(f"name at least one corruption of {', '.join(CORRUPTIONS)}")
    if not severities or any(severity not in SEVERITIES for severity in severities):
        raise ValueError(f"severities are numbers from {SEVERITIES[0]} to {SEVERITIES[-1]}, got {list(severities)}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit}: a limit is a number of images, at least 1")
    if processes < 1:
        raise ValueError(f"processes is at least 1, got {processes}")
    return [name for name in CORRUPTIONS if name in wanted]


# ---- Corruptions


def _corruptions(
    question: Question,
    names: Sequence[str],
    severities: Sequence[int],
    baseline: str | PathLike[str] | None,
    processes: int,
    progress: Progress,
) -> dict[str, Any]:
    if question.imagenet_c is not None:
        corruption_folders(question.imagenet_c, names, severities)  # what is missing is told before hours of work
    subject = CorruptedRun(question)
    where = question.subject.directory.robustness
    progress.overview(lambda: overview_of_opened(subject.opened, subject.split or "", writes=where))
    against, notes = _choose_baseline(subject, severities, baseline)
    other = None
    if isinstance(against, Path):
        other = CorruptedRun(_same_images(subject, against))
        notes += _compare_subjects(subject, other)
    notes += _about_classes(subject)
    if subject.why_no_clean_images is not None:
        notes.append(f"the error on clean images is not known: {subject.why_no_clean_images}")
    with subject.alone(), other.alone() if other is not None else nullcontext():
        measured = _measure_all(subject, names, severities, processes, progress)
        compared: dict[str, Any] | None = None
        if other is not None:
            progress.note(f"the baseline: {other.question.run}")
            found = _measure_all(other, names, severities, processes, progress)
            compared = {"name": other.question.run.resolve().name, **found}
            if read_robust(other.question.run, _kind(question)) is None:
                _write(other, _summary(other, found, None, []))
        elif against == ALEXNET_NAME:
            compared = {
                "name": "AlexNet",
                "clean_error": ALEXNET_CLEAN,
                "errors": {name: list(ALEXNET[name]) for name in names},
            }
        result = _summary(subject, measured, compared, notes)
        _write(subject, result)
    return result


def _choose_baseline(
    subject: CorruptedRun, severities: Sequence[int], baseline: str | PathLike[str] | None
) -> tuple[Path | str | None, list[str]]:
    """A run, AlexNet or nothing, and what the user should know about it."""
    if baseline is not None and str(baseline) != ALEXNET_NAME:
        return Path(baseline), []
    classes = subject.opened.card.classes
    imagenet = is_imagenet(classes)
    if baseline is None and not imagenet:
        return None, ["no mCE: it compares with a baseline, which --baseline RUN names"]
    if tuple(severities) != SEVERITIES:
        why = "AlexNet's published errors are means over all five severities"
        if baseline is None:
            return None, [f"no mCE: {why}"]
        raise ValueError(f"{why}; leave --severities out, or name a run as the baseline")
    notes = []
    if not imagenet:
        notes.append(f"AlexNet's errors are of ImageNet's classes, not of these {len(classes)}: they only weigh corruptions")
    if subject.question.imagenet_c is None:
        notes.append("AlexNet's errors were measured on the files of ImageNet-C; here the corruptions are computed anew")
    return ALEXNET_NAME, notes


def _same_images(subject: CorruptedRun, run: Path) -> Question:
    """The same question to another run: about the images of this one, not of its own data set."""
    question, config = subject.question, subject.opened.config
    asked = question.subject
    own = asked.data in (None, config.data)
    return replace(
        question,
        subject=replace(
            asked,
            run=run,
            weights=None,
            data=asked.data or config.data,
            data_dir=asked.data_dir or (config.data_dir if own else None),
        ),
        split=None if subject.why_no_clean_images else subject.split,
        loading=subject.opened.loading,
    )


def _compare_subjects(subject: CorruptedRun, baseline: CorruptedRun) -> list[str]:
    """Notes about this baseline for the user; ValueError if their errors cannot be compared."""
    run, (mine, its) = baseline.opened.path, (each.opened.card.classes for each in (subject, baseline))
    if set(mine) != set(its) and not (is_imagenet(mine) and is_imagenet(its)):
        raise ValueError(
            f"the baseline {run} tells other classes apart, {some(its, 3)} instead of {some(mine, 3)}; choose a baseline with "
            "the same classes"
        )
    here, there = (each.conditions["images"] for each in (subject, baseline))
    sizes = [" × ".join(map(str, images["image_size"])) for images in (here, there)]
    if here.get("table") != there.get("table"):
        raise ValueError(
            f"the baseline {run} takes images of {sizes[1]} px, which are corrupted by the table for {there['table']} images, "
            f"and those of {sizes[0]} px by the other: errors cannot be compared; choose a baseline of about the same size"
        )
    notes = []
    if sizes[0] != sizes[1]:
        notes.append(f"the baseline takes images of {sizes[1]} px instead of {sizes[0]} px")
    if subject.question.subject.weights is not None:
        notes.append("the baseline is asked with its usual weights; --weights is for the run alone")
    return notes


def _about_classes(subject: CorruptedRun) -> list[str]:
    """Notes where classes are matched by their order alone."""
    notes, classes, data = [], subject.opened.card.classes, subject.opened.images
    if subject.question.imagenet_c is not None and (note := class_numbers(classes)[1]):
        notes.append(note)
    if data.classes != classes:
        notes.append(f"the classes of {data.name} have other names than in training, and are taken in their order")
    return notes


def _summary(
    subject: CorruptedRun, measured: dict[str, Any], baseline: dict[str, Any] | None, notes: Sequence[str]
) -> dict[str, Any]:
    found = summarise(measured["errors"], measured["clean_error"], baseline)
    about = {"kind": _kind(subject.question), "conditions": subject.conditions}
    all_notes = [*notes, *_about_broken(measured["broken"]), *found["notes"]]
    return about | measured | found | {"baseline": baseline, "notes": all_notes}


def _about_broken(images: int) -> list[str]:
    return [f"images that cannot be read do not count, up to {images} in each pass"] if images else []


def _kind(question: Question) -> str:
    return "corruptions" if question.imagenet_c is None else "imagenet_c"


def _write(subject: CorruptedRun, result: dict[str, Any]) -> None:
    if subject.opened.processes.is_main:
        write_json(subject.question.subject.directory.robustness_file(result["kind"]), result)


# ---- The work, here or in several processes


def _measure_all(
    subject: CorruptedRun, names: Sequence[str], severities: Sequence[int], processes: int, progress: Progress
) -> dict[str, Any]:
    """{"severities", "clean_error", "errors", "broken"}: what is missing is measured, the rest is read. "broken" is how many
    images could not be read, at the severity where they are most."""
    if processes > 1 and subject.opened.processes.world > 1:
        raise ValueError("torchrun has started several processes already, which share the images; leave --processes out")
    wanted = {CLEAN: [0]} if subject.why_no_clean_images is None else {}
    wanted |= {name: list(severities) for name in names}
    known = subject.known((name, severity) for name, each in wanted.items() for severity in each)
    missing = {name: [severity for severity in each if (name, severity) not in known] for name, each in wanted.items()}
    missing = {name: each for name, each in missing.items() if each}
    done, total = len(known), sum(map(len, wanted.values()))
    progress.begin(done, total)

    def tick() -> None:
        nonlocal done
        done += 1
        progress.step(done)

    def finished(name: str, measured: dict[int, Measured]) -> None:
        known.update({(name, severity): found for severity, found in measured.items()})
        progress.note(f"{name}: error {', '.join(f'{known[name, severity].error:.1%}' for severity in wanted[name])}")

    try:
        if processes > 1 and len(missing) > 1:
            jobs = {name: (subject.question, name, each) for name, each in missing.items()}
            heard = lambda news: tick() if news is None else progress.note(news)  # noqa: E731
            run_jobs(_measure_in_worker, jobs, min(processes, len(jobs)), heard=heard, finished=finished)
        else:
            for name, each in missing.items():
                finished(name, subject.measure(name, each, tick, progress.note))
    finally:
        progress.end()
    return {
        "severities": list(severities),
        "clean_error": known[CLEAN, 0].error if CLEAN in wanted else None,
        "errors": {name: [known[name, severity].error for severity in severities] for name in names},
        "broken": max(found.broken for found in known.values()),
    }


_subject: CorruptedRun | None = None  # of a worker, from its first corruption on


def _measure_in_worker(question: Question, name: str, severities: Sequence[int]) -> dict[int, Measured]:
    global _subject
    _subject = _subject or CorruptedRun(question)
    return _subject.measure(name, severities, lambda: say(None), say)


# ---- ImageNet-R and ImageNet-A


class AmongClasses(nn.Module):
    """A classifier that may only choose among some of its classes: the others get no probability."""

    def __init__(self, task: Task, chosen: Sequence[int], classes: int) -> None:
        super().__init__()
        if not isinstance(task, Classification):
            raise ValueError(f"this collection is for classifiers, and the run's task is {task.name!r}")
        self.task = task
        allowed = torch.zeros(classes).index_fill_(0, torch.tensor(chosen), 1).bool()
        self.register_buffer("allowed", allowed, persistent=False)
        self.allowed: Tensor

    def forward(self, images: Tensor) -> Tensor:
        return self.task.logits(images).masked_fill(~self.allowed, -torch.inf)


def _variant(question: Question, variant: str, folder: Path, progress: Progress) -> dict[str, Any]:
    classes = ModelCard.read(question.run).classes
    note = class_numbers(classes)[1]
    data, chosen = open_variant(variant, folder, classes)
    opened, _ = question.open(data).limited("test", question.limit)
    processes = opened.processes
    progress.overview(lambda: overview_of_opened(opened, "test", writes=question.subject.directory.robustness))
    conditions = {
        "model": which_weights(opened),
        "images": {
            "data": variant,
            "folder": str(folder.resolve()),
            "fingerprint": fingerprint_of(opened, "test"),
            "image_size": list(opened.images.image_size),
        },
    }
    stored = read_robust(question.run, variant)
    known = stored if stored is not None and stored["conditions"] == conditions else None
    if not processes.any(known is None) and known is not None:  # all processes have looked before one of them writes
        return known
    among = AmongClasses(opened.task, chosen, len(classes)).to(processes.device)
    task = Classification(among, len(classes))
    evaluator = task.evaluator()
    with question.subject.directory.alone(main=processes.is_main):
        found = evaluate(task, opened.loader("test", question.batch_size), processes, progress.note, evaluator)
        result = {"kind": variant, "conditions": conditions, "samples": evaluator.samples, "classes": len(chosen)}
        result |= {"error": 1 - found["top1"], "top1": found["top1"], "top5": found["top5"]}
        broken = found.get("broken", 0)
        result |= {"broken": broken, "notes": [*([note] if note else []), *_about_broken(broken)]}
        if processes.is_main:
            write_json(question.subject.directory.robustness_file(variant), result)
    return result
