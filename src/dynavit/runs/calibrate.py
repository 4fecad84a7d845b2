"""Thresholds for the exits of a trained cascade: found on one split, judged on another with early exit executed.

The thresholds, an `ExitPolicy`, are stored beside the weights; what they give (costs, accuracies, curves, easy and hard images)
is stored for the report.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from ..analysis.report.read import read_calibration as read_stored
from ..bench.exits import exit_gmacs, exit_milliseconds, prediction_milliseconds
from ..common.files import write_json, write_text
from ..data.picture import data_uri
from ..data.splits import cut_validation
from ..engine.progress import Progress
from ..models.cascade import Cascade
from ..models.cascade.calibration import Array, Point, ThresholdCurve, released_thresholds, scores, simulate, trade_off
from ..models.cascade.policy import EVERYONE, ConfidenceKind, ExitPolicy, FoundOn
from .directory import RunDirectory
from .opened import Opened
from .overview import overview_of_opened
from .subject import Subject, WhichOptions

RELEASED_GRID = range(1, 60)  # p of the release; p = 20 lets equally many images leave at each exit
CURVE_POINTS = 60
MEASURED_POINTS = 8  # of the curve, early exit executed
MEASURED_IMAGES = 512  # at most, evenly over the split, for files are often sorted by class
LOOK_BATCH = 256
SHOWN = 12  # images per exit
PARTS_OF_VAL = {"val": "val (first part)", "test": "val (second part)"}  # for data without a test split


@dataclass(frozen=True)
class Goal:
    """The goal that thresholds are chosen for: exactly one of these.

    Attributes:
        gmacs: at most so many GMACs per image, on average.
        milliseconds: at most so many milliseconds per image, on average, at the batch size that is measured.
        accuracy: at least this accuracy, a fraction, at the least cost.
        p: the released grid: shares of images at the exits in the ratio 1 : p/20 : (p/20)^2 : ...
    """

    gmacs: float | None = None
    milliseconds: float | None = None
    accuracy: float | None = None
    p: int | None = None

    def __post_init__(self) -> None:
        given = [name for name, value in vars(self).items() if value is not None]
        if len(given) != 1:
            raise ValueError(
                f"thresholds are found for one goal: gmacs, milliseconds, accuracy or p; got {' and '.join(given) or 'none'}"
            )
        if self.p is not None and self.p not in RELEASED_GRID:
            raise ValueError(f"p goes from {RELEASED_GRID[0]} to {RELEASED_GRID[-1]}, got {self.p}")
        if self.accuracy is not None and not 0 <= self.accuracy <= 1:
            raise ValueError(f"accuracy is a fraction from 0 to 1, such as 0.9; got {self.accuracy:g}")

    def __str__(self) -> str:
        if self.gmacs is not None:
            return f"at most {self.gmacs:g} GMACs per image"
        if self.milliseconds is not None:
            return f"at most {self.milliseconds:g} ms per image"
        if self.accuracy is not None:
            return f"at least {self.accuracy:.2%} accuracy"
        return f"the released grid, p = {self.p}"


def calibrate_run(
    run: str | PathLike[str] | Subject,
    goal: Goal,
    *,
    split: str = "val",
    judge: str = "test",
    confidence: ConfidenceKind = "max_softmax",
    batch_size: int = 64,
    progress: Progress | None = None,
    **which: Unpack[WhichOptions],
) -> dict[str, Any]:
    """Find thresholds on `split` (never augmented), store them, and judge them on `judge`; returns what it writes.

    The times are measured here, at `batch_size`: thresholds for a time are for this machine. Thresholds for other weights than
    the usual ones (`checkpoint`, `weights`) are judged, but not stored, for prediction would use them with the usual ones.
    Data without a test split give half of val to the search and the other half to the judge, cut by the run's `split_seed`.
    """
    progress, subject = progress or Progress(), Subject.of(run, which)
    with subject.directory.alone():
        return _calibrate(subject, goal, split, judge, confidence, batch_size, progress)


def _calibrate(
    subject: Subject, goal: Goal, split: str, judge: str, confidence: ConfidenceKind, batch_size: int, progress: Progress
) -> dict[str, Any]:
    exits = Exits.open(subject, (split, judge), progress)
    split, judge = exits.splits
    progress.overview(lambda: overview_of_opened(exits.opened, split, judge, writes=subject.directory.policy_file))
    seen = exits.look_at(split, confidence)
    progress.note("measuring the exits")
    gmacs, milliseconds = exits.costs(seen.images, batch_size)
    curve = trade_off(seen.conf, seen.correct, gmacs if goal.milliseconds is None else milliseconds)
    if goal.p is not None:
        point = simulate(seen.conf, seen.correct, gmacs, released_thresholds(seen.conf, [goal.p]))[0]
    elif goal.accuracy is not None:
        point = curve.for_accuracy(goal.accuracy)
    elif goal.gmacs is not None:
        point = curve.for_budget(goal.gmacs)
    else:
        assert goal.milliseconds is not None
        progress.note("measuring early exit")
        point = _as_measured(curve, exits.cascade, seen.images, confidence, batch_size).for_budget(goal.milliseconds)
    policy = ExitPolicy(
        point.thresholds,
        confidence,
        gmacs=gmacs,
        milliseconds=milliseconds,
        batch_size=batch_size,
        accuracy=tuple(seen.correct.mean(1).tolist()),
        shares=point.shares,
        expected_accuracy=point.accuracy,
        found_on=FoundOn(exits.opened.data.name, split, exits.opened.loading.split_seed, seen.conf.shape[1]),
        found_by=str(goal),
    )
    if subject.is_usual:
        write_text(subject.directory.policy_file, policy.to_json())
    else:
        progress.note("these are not the run's usual weights, so the thresholds are judged and not stored")
    others = curve.thresholds[_spread(len(curve), CURVE_POINTS)]
    return _judge(exits, judge, exits.look_at(judge, confidence), policy, others, progress)


def judge_run(
    run: str | PathLike[str] | Subject,
    *,
    judge: str = "test",
    batch_size: int = 64,
    progress: Progress | None = None,
    **which: Unpack[WhichOptions],
) -> dict[str, Any]:
    """Judge the stored thresholds with early exit executed. Costs are counted and measured anew."""
    progress, subject = progress or Progress(), Subject.of(run, which)
    with subject.directory.alone():
        policy = read_policy(subject.run)
        exits = Exits.open(subject, (judge,), progress)
        (judge,) = exits.splits
        progress.overview(lambda: overview_of_opened(exits.opened, judge, writes=subject.directory.calibration_file))
        policy.check_fits(len(exits.cascade.exits))
        seen = exits.look_at(judge, policy.confidence_kind)
        progress.note("measuring the exits")
        gmacs, milliseconds = exits.costs(seen.images, batch_size)
        policy = replace(policy, gmacs=gmacs, milliseconds=milliseconds, batch_size=batch_size)
        return _judge(exits, judge, seen, policy, _stored_curve(subject.run, policy), progress)


def read_policy(run: Path) -> ExitPolicy:
    """The stored thresholds of a run."""
    path = RunDirectory(run).policy_file
    if not path.is_file():
        raise ValueError(f"{run} has no {path.name}; find thresholds with `dynavit calibrate {run} --gmacs ...`")
    try:
        return ExitPolicy.from_json(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def read_calibration(run: Path) -> dict[str, Any] | None:
    """The result that `calibrate_run` or `judge_run` wrote last; None if neither was called."""
    return read_stored(RunDirectory(run).calibration_file) or None


@dataclass(frozen=True)
class Seen:
    """Confidence (exits, n) and correctness (exits, n) of the exits on a split. `images`: every `stride`-th of it."""

    conf: Array
    correct: Array
    images: Tensor
    stride: int


@dataclass(frozen=True)
class Exits:
    """The exits of a run's cascade, and splits of data to ask them about. Where there is no test split, val is cut in two."""

    opened: Opened
    cascade: Cascade
    splits: tuple[str, ...]

    @classmethod
    def open(cls, subject: Subject, splits: Sequence[str], progress: Progress | None = None) -> "Exits":
        opened = subject.open()
        cascade = opened.model
        if not isinstance(cascade, Cascade):
            raise ValueError(
                f"{subject.run} holds a {type(cascade).__name__}, which has no exits; thresholds are for cascades (dvt_...)"
            )
        there = opened.data.splits
        if "test" in splits and "test" not in there and "val" in there:
            opened, note = _cut_in_two(opened)
            (progress or Progress()).note(note)
            splits = [PARTS_OF_VAL.get(split, split) for split in splits]
        for split in splits:
            if split not in opened.data.splits:
                raise ValueError(
                    f"{opened.data.name} has no split {split!r}; it has {', '.join(opened.data.splits)}: "
                    "find thresholds on one (--split), judge them on another (--judge)"
                )
        return cls(opened, cascade, tuple(splits))

    def batches(self, split: str, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and classes in order, as they are evaluated: never augmented."""
        for (batch,) in self.opened.loader(split, size).epoch():
            yield batch.inputs[: batch.count], batch.targets[: batch.count]

    @torch.no_grad()
    def look_at(self, split: str, kind: str) -> Seen:
        """Run all exits on all images."""
        stride = -(-len(self.opened.data.splits[split]) // MEASURED_IMAGES)
        kept: list[Tensor] = []

        def answers() -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
            seen = 0
            for inputs, targets in self.batches(split, LOOK_BATCH):
                kept.append(inputs[-seen % stride :: stride].clone())  # a view would keep the whole batch
                seen += len(inputs)
                yield self.cascade(inputs), targets

        conf, correct = scores(answers(), kind)
        return Seen(conf, correct, torch.cat(kept), stride)

    def costs(self, images: Tensor, batch_size: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """GMACs and milliseconds per image that leaves at each exit."""
        batch = images[torch.arange(batch_size, device=images.device) % len(images)]  # full, even if there are fewer
        return tuple(exit_gmacs(self.cascade, batch[:1])), tuple(exit_milliseconds(self.cascade, batch))


def _cut_in_two(opened: Opened) -> tuple[Opened, str]:
    """Validation cut by the run's seed, half of each class: one part to find thresholds on, the other to judge them."""
    data, seed = opened.images, opened.loading.split_seed
    val = data.splits["val"]
    first, second = cut_validation(val.labels, 0.5, seed)
    if not len(second):
        raise ValueError(
            f"{data.name} has no test split, and too few validation images to cut in two: {len(val)}; thresholds are found on "
            "one split (--split) and judged on another (--judge)"
        )
    parts = {PARTS_OF_VAL["val"]: val.subset(first), PARTS_OF_VAL["test"]: val.subset(second)}
    note = (
        f"{data.name} has no test split: {len(first)} of its {len(val)} validation images are for finding thresholds, the "
        f"other {len(second)} for judging them (split_seed={seed})"
    )
    return replace(opened, data=replace(data, splits={**data.splits, **parts})), note


def _as_measured(
    curve: ThresholdCurve, cascade: Cascade, images: Tensor, kind: ConfidenceKind, batch_size: int
) -> ThresholdCurve:
    """The curve with the time that its thresholds really take. Batches shrink on the way, and a small one costs more per image
    than its share of a full one, which the sum of the exits' times does not know.
    """
    at = _spread(len(curve), MEASURED_POINTS)
    policies = [ExitPolicy(curve[i].thresholds, kind) for i in at]
    spent = prediction_milliseconds(cascade, images, policies, batch_size)
    # Along the curve no image leaves earlier, so time that falls is noise; without it more budget is never worse.
    return replace(curve, cost=np.interp(range(len(curve)), at, np.maximum.accumulate(spent)))


def _judge(exits: Exits, split: str, seen: Seen, policy: ExitPolicy, thresholds: Array, progress: Progress) -> dict[str, Any]:
    """The results of a policy on a split, early exit executed, and beside it thresholds (points, exits) for other budgets."""
    assert policy.gmacs is not None and policy.batch_size is not None
    progress.note(f"running {split} with early exit")
    data, cascade = exits.opened.images, exits.cascade
    asked = [(cascade.predict(inputs, policy), targets) for inputs, targets in exits.batches(split, policy.batch_size)]
    labels, confidence, left_at = (
        torch.cat([getattr(answer, name) for answer, _ in asked]).cpu() for name in ("labels", "confidence", "exit")
    )
    targets = torch.cat([targets for _, targets in asked]).cpu()
    shares = torch.bincount(left_at, minlength=policy.exits).double() / len(left_at)

    judged = simulate(seen.conf, seen.correct, policy.gmacs, thresholds)
    measured = _spread(len(judged), MEASURED_POINTS)
    progress.note(f"measuring early exit with {1 + len(measured)} sets of thresholds")
    policies = [policy, *(replace(policy, thresholds=judged[i].thresholds) for i in measured)]
    spent, *times = prediction_milliseconds(cascade, seen.images, policies, policy.batch_size)

    shown = [  # the first few of each exit
        (left_at[:: seen.stride] == at).nonzero().flatten().tolist()[:SHOWN] for at in range(policy.exits)
    ]
    result = {
        "data": data.name,
        "classes": data.classes,
        "split": split,
        "policy": json.loads(policy.to_json()),
        "samples": len(left_at),
        "accuracy": float((labels == targets).double().mean()),
        "shares": shares.tolist(),
        "gmacs": float(shares @ torch.tensor(policy.gmacs, dtype=torch.float64)),
        "milliseconds": spent,
        "images_per_second": 1e3 / spent,
        "anytime": seen.correct.mean(1).tolist(),
        "curve": [_plain(judged[i]) for i in range(len(judged))],
        "measured": [{**_plain(judged[i]), "milliseconds": time} for i, time in zip(measured, times, strict=True)],
        "gallery": [
            [
                {
                    "index": i * seen.stride,
                    "image": data_uri(seen.images[i], data.mean, data.std),
                    "target": int(targets[i * seen.stride]),
                    "prediction": int(labels[i * seen.stride]),
                    "confidence": float(confidence[i * seen.stride]),
                }
                for i in leaving
            ]
            for leaving in shown
        ],
    }
    write_json(exits.opened.subject.directory.calibration_file, result)
    return result


def _plain(point: Point) -> dict[str, Any]:
    """For JSON, which has no infinity."""
    thresholds = [None if threshold == EVERYONE else threshold for threshold in point.thresholds]
    return {"thresholds": thresholds, "gmacs": point.cost, "accuracy": point.accuracy, "shares": list(point.shares)}


def _stored_curve(run: Path, policy: ExitPolicy) -> Array:
    """(points, exits) that were found with the policy; none if it came from elsewhere.

    From cheap to dear no threshold falls, whatever wrote the file: with more budget no image shall leave earlier.
    """
    stored: dict[str, Any] = read_calibration(run) or {"policy": {}}
    if stored["policy"].get("confidence_kind") != policy.confidence_kind:
        return np.empty((0, policy.exits))
    rows = [[EVERYONE if t is None else t for t in point["thresholds"]] for point in stored["curve"]]
    if any(len(row) != policy.exits for row in rows):
        raise ValueError(
            f"{RunDirectory(run).calibration_file}: its curve is not of {policy.exits} exits; calibrate the run anew"
        )
    rows = [row for _, row in sorted(zip((point["gmacs"] for point in stored["curve"]), rows, strict=True))]
    return np.maximum.accumulate(np.array(rows, np.float64).reshape(-1, policy.exits))


def _spread(count: int, most: int) -> list[int]:
    """At most so many of 0, 1, ..., evenly, with both ends."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(most, count))})
