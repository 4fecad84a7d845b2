"""`dynavit calibrate`: when images may leave a cascade. Three words: search (the default), judge, show."""

import json
from pathlib import Path
from typing import Any, Literal

from ..common.fits import AtLeastOne, Fraction, Positive
from ..runs.subject import Subject, Which
from .next_steps import Step, tell_next
from .parse import positional
from .show import print_table


@positional("run")
def search(
    run: Path,
    which: Which,
    gmacs: Positive | None = None,
    milliseconds: Positive | None = None,
    accuracy: Fraction | None = None,
    p: int | None = None,
    split: str = "val",
    judge: str = "test",
    confidence: Literal["max_softmax", "margin", "entropy"] = "max_softmax",
    batch_size: AtLeastOne = 64,
    quiet: bool = False,
) -> None:
    """Find thresholds for a cascade's exits, and see what early exit then gives: accuracy, GMACs, real time.

    Say what you want with one of --gmacs, --milliseconds, --accuracy, --p. Thresholds are found on one split and judged on
    another, early exit executed; where there is no test split, val is cut in two. They are stored in RUN/policy.json, where
    `dynavit predict` finds them; what they give, with curves and easy and hard images, in RUN/analysis/calibration.json and in
    the report.
    `dynavit calibrate judge RUN` judges the stored thresholds again, `dynavit calibrate show RUN` prints what is stored.
    In Python: `dynavit.runs.calibrate.calibrate_run(run, Goal(gmacs=...))`.

    Args:
        run: directory of a trained cascade.
        gmacs: at most so many GMACs per image, on average.
        milliseconds: at most so many milliseconds per image, on average, at --batch-size on this machine.
        accuracy: at least this accuracy, such as 0.9, at the least cost.
        p: the grid of the DVT release, 1 to 59.
        split: where thresholds are found; never augmented.
        judge: where they are judged.
        confidence: what makes an exit sure.
        batch_size: at which times are measured.
        quiet: show no summary, progress or next steps.
    """
    from ..engine.progress import choose_progress
    from ..runs.calibrate import Goal, calibrate_run

    goal = Goal(gmacs, milliseconds, accuracy, p)
    how: dict[str, Any] = {"split": split, "judge": judge, "confidence": confidence, "batch_size": batch_size}
    _tell(run, calibrate_run(Subject.of(run, which), goal, **how, progress=choose_progress(quiet)))
    steps: list[Step] = [
        (["predict", run, "photo.jpg"], "stops where it is sure"),
        (["serve", run], "a page, and answers over HTTP"),
        (["export", run], "ONNX, a file per exit"),
    ]
    tell_next(*steps, quiet=quiet)


@positional("run")
def judge(run: Path, which: Which, split: str = "test", batch_size: AtLeastOne = 64, quiet: bool = False) -> None:
    """Judge the stored thresholds of a cascade on a split, early exit executed; times are measured again.

    In Python: `dynavit.runs.calibrate.judge_run(run)`.

    Args:
        run: directory of a calibrated cascade.
        split: where they are judged.
        batch_size: at which times are measured.
        quiet: show no summary, progress or next steps.
    """
    from ..engine.progress import choose_progress
    from ..runs.calibrate import judge_run

    _tell(run, judge_run(Subject.of(run, which), judge=split, batch_size=batch_size, progress=choose_progress(quiet)))
    tell_next((["calibrate", run, "--accuracy", "0.9"], "other thresholds"), quiet=quiet)


@positional("run")
def show(run: Path) -> None:
    """Print the stored thresholds of a cascade and the results they gave; nothing is run.

    In Python: `dynavit.runs.calibrate.read_policy(run)`, `read_calibration(run)`.

    Args:
        run: directory of a calibrated cascade, or a released checkpoint file.
    """
    from ..runs.calibrate import read_calibration, read_policy

    if run.is_file():
        _print_released(run)
        return
    _print_policy(read_policy(run))
    if found := read_calibration(run):
        _print_result(found)


def _tell(run: Path, result: dict[str, Any]) -> None:
    from ..models.cascade.policy import ExitPolicy
    from ..runs.report import write_report

    _print_policy(ExitPolicy.from_json(json.dumps(result["policy"])))
    _print_result(result)
    print(f"report: {write_report(run)}")


def _print_policy(policy: Any) -> None:
    found = policy.found_on
    where = f", found on {found.samples} images ({found.split} of {found.data}, seed {found.seed})" if found else ""
    print_table(
        f"thresholds for {policy.found_by}{where}",
        ["exit", f"leave from {policy.confidence_kind}", "expected share"],
        [
            [str(k), _threshold_text(threshold), "-" if policy.shares is None else f"{policy.shares[k - 1]:.1%}"]
            for k, threshold in enumerate(policy.thresholds, 1)
        ],
    )


def _print_result(result: dict[str, Any]) -> None:
    policy = result["policy"]
    columns = zip(result["shares"], result["anytime"], policy["gmacs"], policy["milliseconds"], strict=True)
    print_table(
        f"{result['split']} of {result['data']}, {result['samples']} images, early exit executed",
        ["exit", "leave here", "accuracy if all did", "GMACs", f"ms at batch {policy['batch_size']}"],
        [
            [str(k), f"{share:.1%}", f"{alone:.2%}", f"{cost:.4g}", f"{spent:.4g}"]
            for k, (share, alone, cost, spent) in enumerate(columns, 1)
        ]
        + [["early exit", "", f"{result['accuracy']:.2%}", f"{result['gmacs']:.4g}", f"{result['milliseconds']:.4g}"]],
    )


def _print_released(path: Path) -> None:
    """Costs, accuracies and thresholds that a released checkpoint holds."""
    from ..runs.model_files import load_released

    stored = getattr(load_released(path), "released", None) or {}
    if missing := {"flops", "anytime_classification", "dynamic_threshold", "budgeted_batch_classification"} - set(stored):
        raise ValueError(f"{path} holds no results of a cascade: {', '.join(sorted(missing))} missing")
    exits = zip(stored["flops"], stored["anytime_classification"], strict=True)
    print_table(
        f"{path}: if all images left at one exit",
        ["exit", "GMACs", "accuracy, %"],
        [[str(k), f"{cost:.4g}", f"{accuracy:.2f}"] for k, (cost, accuracy) in enumerate(exits, 1)],
    )
    budgets = zip(*stored["budgeted_batch_classification"], stored["dynamic_threshold"], strict=True)
    print_table(
        "its thresholds for growing budgets",
        ["p", "GMACs", "accuracy, %", "leave from max_softmax, exit by exit"],
        [
            [str(p), f"{cost:.4g}", f"{accuracy:.2f}", ", ".join(map(_threshold_text, thresholds))]
            for p, (cost, accuracy, thresholds) in enumerate(budgets, 1)
        ],
    )


def _threshold_text(threshold: float) -> str:
    return "all" if threshold <= 0 else ("none" if threshold > 1 else f"{threshold:.4f}")
