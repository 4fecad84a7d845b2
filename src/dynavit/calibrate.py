"""When images may leave a trained cascade: thresholds found on one split, judged on another, with images really leaving.

RUN/policy.json              the `ExitPolicy`, beside the weights
RUN/eval/calibration.json    curves, accuracies of the exits, easy and hard images; for the report
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .bench.exits import exit_gmacs, exit_milliseconds, prediction_milliseconds
from .common.files import write_json, write_text
from .config import TrainConfig, from_plain
from .data.dataset import DataSet
from .data.loader import make_loader
from .data.open import open_data
from .engine.config import EngineConfig
from .engine.processes import Processes
from .engine.progress import Silent
from .engine.run_dir import RunDirectory
from .model_files import load
from .models.calibration import Curve, Point, released_thresholds, scores, simulate, trade_off
from .models.cascade import Cascade
from .models.exit_policy import ConfidenceKind, ExitPolicy, FoundOn
from .samples import data_uri

POLICY = "policy.json"
RELEASED_GRID = range(1, 60)  # p of the release; p = 20 lets equally many images leave at each exit
MEASURED_POINTS = 8  # of the curve, with images really leaving
MEASURED_IMAGES = 1024  # at most
SHOWN = 12  # images per exit


@dataclass(frozen=True)
class Goal:
    """What thresholds are chosen for: exactly one of these.

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
            raise ValueError(f"thresholds are found for one goal: gmacs, milliseconds, accuracy or p; got {given or 'none'}")
        if self.p is not None and self.p not in RELEASED_GRID:
            raise ValueError(f"p goes from {RELEASED_GRID[0]} to {RELEASED_GRID[-1]}, got {self.p}")

    def __str__(self) -> str:
        if self.gmacs is not None:
            return f"at most {self.gmacs:g} GMACs per image"
        if self.milliseconds is not None:
            return f"at most {self.milliseconds:g} ms per image"
        if self.accuracy is not None:
            return f"at least {self.accuracy:.2%} accuracy"
        return f"the released grid, p = {self.p}"


def calibrate_run(
    run: Path,
    goal: Goal,
    *,
    split: str = "val",
    judge: str = "test",
    data_name: str | None = None,
    data_dir: Path | None = None,
    confidence: ConfidenceKind = "max_softmax",
    batch_size: int = 64,
    device: str | None = None,
    progress: Silent | None = None,
) -> dict[str, Any]:
    """Find thresholds on `split` (never augmented), store them, and judge them on `judge`; returns what it writes.

    The times are measured here, at `batch_size`: thresholds for a time are for this machine.
    """
    progress = progress or Silent()
    cascade, data, processes = _open(run, data_name, data_dir, device)
    found = _split_scores(cascade, data, split, processes, confidence)
    gmacs = exit_gmacs(cascade, _images(data, split, processes, 1))
    progress.note("measuring the exits")
    milliseconds = exit_milliseconds(cascade, _images(data, split, processes, batch_size))
    cost = milliseconds if goal.milliseconds is not None else gmacs
    curve = trade_off(*found, cost)
    if goal.p is not None:
        grid = simulate(*found, gmacs, released_thresholds(found[0], RELEASED_GRID))
        point = grid[RELEASED_GRID.index(goal.p)]
    elif goal.accuracy is not None:
        point = curve.for_accuracy(goal.accuracy)
    else:
        budget = goal.gmacs if goal.gmacs is not None else goal.milliseconds
        assert budget is not None
        point = curve.for_budget(budget)
    split_seed = from_plain(TrainConfig, RunDirectory(run).read_config()).loading.split_seed
    policy = ExitPolicy(
        point.thresholds,
        confidence,
        gmacs=tuple(gmacs),
        milliseconds=tuple(milliseconds),
        batch_size=batch_size,
        accuracy=tuple(found[1].mean(1).tolist()),
        shares=point.shares,
        expected_accuracy=point.accuracy,
        found_on=FoundOn(data.name, split, split_seed, found[0].shape[1]),
        found_by=str(goal),
    )
    write_text(run / POLICY, policy.to_json())
    return _judge(run, cascade, data, judge, policy, curve, processes, progress)


def judge_run(
    run: Path,
    *,
    judge: str = "test",
    data_name: str | None = None,
    data_dir: Path | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    progress: Silent | None = None,
) -> dict[str, Any]:
    """Evaluate with the thresholds that are stored, images really leaving."""
    policy = read_policy(run)
    cascade, data, processes = _open(run, data_name, data_dir, device)
    if batch_size is not None and batch_size != policy.batch_size:
        images = _images(data, judge, processes, batch_size)
        policy = replace(policy, milliseconds=tuple(exit_milliseconds(cascade, images)), batch_size=batch_size)
    return _judge(run, cascade, data, judge, policy, None, processes, progress or Silent())


def read_policy(run: Path) -> ExitPolicy:
    """The stored thresholds of a run."""
    path = run / POLICY
    if not path.is_file():
        raise ValueError(f"{run} has no {POLICY}; find thresholds with `dynavit calibrate {run} --gmacs ...`")
    return ExitPolicy.from_json(path.read_text())


def _judge(
    run: Path,
    cascade: Cascade,
    data: DataSet,
    split: str,
    policy: ExitPolicy,
    curve: Curve | None,
    processes: Processes,
    progress: Silent,
) -> dict[str, Any]:
    """What the policy gives on another split, by really running it, and the curve of others around it."""
    gmacs, batch_size = policy.gmacs or (), policy.batch_size or 64
    conf, correct = _split_scores(cascade, data, split, processes, policy.confidence_kind)
    progress.note(f"running {split} with early exit")
    exits, right = [], []
    for inputs, targets in _batches(data, split, processes, batch_size):
        answer = cascade.predict(inputs, policy)
        exits.append(answer.exit)
        right.append(answer.labels == targets)
    exit, images = torch.cat(exits), _images(data, split, processes, MEASURED_IMAGES)
    shares = torch.bincount(exit, minlength=policy.exits).double() / len(exit)
    spent = prediction_milliseconds(cascade, images, policy, batch_size)
    points = [] if curve is None else [curve[int(i)] for i in np.linspace(0, len(curve) - 1, MEASURED_POINTS).round()]
    result = {
        "data": data.name,
        "split": split,
        "policy": POLICY,
        "found_by": policy.found_by,
        "samples": len(exit),
        "accuracy": float(torch.cat(right).double().mean()),
        "shares": shares.tolist(),
        "gmacs": float(shares @ torch.tensor(gmacs, dtype=torch.float64)),
        "milliseconds": spent,
        "images_per_second": 1e3 / spent,
        "batch_size": batch_size,
        "anytime": correct.mean(1).tolist(),
        "exit_gmacs": list(gmacs),
        "exit_milliseconds": list(policy.milliseconds or ()),
        "curve": _curve(conf, correct, gmacs, curve),
        "measured": _measured(cascade, images, points, policy, conf, correct, gmacs, batch_size, progress),
        "gallery": _gallery(data, split, processes, exit),
        "classes": data.classes,
    }
    write_json(run / "eval" / "calibration.json", result)
    return result


def _curve(conf: Any, correct: Any, gmacs: Sequence[float], curve: Curve | None) -> list[dict[str, float]]:
    """Accuracy against cost of the thresholds that were found, on the split that judges: as if they had been stored."""
    thresholds = released_thresholds(conf, RELEASED_GRID) if curve is None else curve.thresholds[:: max(len(curve) // 60, 1)]
    judged = simulate(conf, correct, gmacs, thresholds)
    return [{"gmacs": float(c), "accuracy": float(a)} for c, a in zip(judged.cost, judged.accuracy, strict=True)]


def _measured(
    cascade: Cascade,
    images: Tensor,
    points: Sequence[Point],
    policy: ExitPolicy,
    conf: Any,
    correct: Any,
    gmacs: Sequence[float],
    batch_size: int,
    progress: Silent,
) -> list[dict[str, float]]:
    """Accuracy against measured time along the curve."""
    found = []
    for number, point in enumerate(points, 1):
        progress.note(f"measuring thresholds {number} of {len(points)}")
        judged = simulate(conf, correct, gmacs, [point.thresholds])[0]
        spent = prediction_milliseconds(cascade, images, replace(policy, thresholds=point.thresholds), batch_size)
        found.append({"milliseconds": spent, "accuracy": judged.accuracy, "gmacs": judged.cost})
    return found


def _gallery(data: DataSet, split: str, processes: Processes, exit: Tensor) -> list[list[dict[str, Any]]]:
    """The first images that left at each exit: easy ones first."""
    inputs, targets = next(_batches(data, split, processes, 512))
    return [
        [
            {"index": i, "image": data_uri(inputs[i], data.mean, data.std), "target": int(targets[i])}
            for i in (exit[: len(inputs)] == at).nonzero().flatten().tolist()[:SHOWN]
        ]
        for at in range(int(exit.max()) + 1)
    ]


def _open(run: Path, data_name: str | None, data_dir: Path | None, device: str | None) -> tuple[Cascade, DataSet, Processes]:
    cascade = load(run)
    if not isinstance(cascade, Cascade):
        raise ValueError(f"{run} holds a {type(cascade).__name__}, which has no exits; thresholds are for cascades (dvt_...)")
    config = from_plain(TrainConfig, RunDirectory(run).read_config())
    own = data_name in (None, config.data)
    data = open_data(data_name or config.data, data_dir or (config.data_dir if own else None), config.loading)
    if len(data.classes) != cascade.num_classes:
        raise ValueError(f"{data.name} has {len(data.classes)} classes, the cascade of {run} tells {cascade.num_classes} apart")
    processes = Processes(EngineConfig(device=device, threads=config.engine.threads))
    return cascade.to(processes.device, processes.dtype), data, processes


def _batches(data: DataSet, split: str, processes: Processes, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    loader = make_loader(data, split, train=False, batch_size=size, device=processes.device, dtype=processes.dtype)
    for (batch,) in loader.epoch():
        yield batch.inputs[: batch.count], batch.targets[: batch.count]


def _images(data: DataSet, split: str, processes: Processes, count: int) -> Tensor:
    return next(_batches(data, split, processes, count))[0]


@torch.no_grad()
def _split_scores(cascade: Cascade, data: DataSet, split: str, processes: Processes, kind: str) -> tuple[Any, Any]:
    return scores(((cascade(inputs), targets) for inputs, targets in _batches(data, split, processes, 256)), kind)
