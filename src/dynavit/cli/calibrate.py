"""`dynavit calibrate`: when images may leave a cascade."""

from pathlib import Path
from typing import Any, Literal

from .parse import positional
from .show import print_table


@positional("run")
def calibrate(
    run: Path,
    mode: Literal["search", "evaluate", "stored"] = "search",
    gmacs: float | None = None,
    milliseconds: float | None = None,
    accuracy: float | None = None,
    p: int | None = None,
    split: str = "val",
    judge: str = "test",
    data: str | None = None,
    data_dir: Path | None = None,
    confidence: Literal["max_softmax", "margin", "entropy"] = "max_softmax",
    batch_size: int = 64,
    device: str | None = None,
) -> None:
    """Find thresholds for a cascade's exits, and see what early exit then gives: accuracy, GMACs, real time.

    Say what you want with one of --gmacs, --milliseconds, --accuracy, --p. Thresholds are found on one split and judged on
    another, images really leaving. They are stored in RUN/policy.json, where `dynavit predict` finds them; what they give,
    with curves and easy and hard images, in RUN/analysis/calibration.json and in the report.
    In Python: `dynavit.runs.calibrate.calibrate_run(run, Goal(gmacs=...))`.

    Args:
        run: directory of a trained cascade; with --mode stored also a released checkpoint file.
        mode: search thresholds and evaluate them, evaluate the stored ones, or only print what is stored.
        gmacs: at most so many GMACs per image, on average.
        milliseconds: at most so many milliseconds per image, on average, at --batch-size on this machine.
        accuracy: at least this accuracy, such as 0.9, at the least cost.
        p: the grid of the DVT release, 1 to 59.
        split: where thresholds are found; never augmented.
        judge: where they are judged.
        data: another data set with the same classes; the run's own if not given.
        data_dir: where the data set lies; as in the run if not given.
        confidence: what makes an exit sure.
        batch_size: at which times are measured.
        device: cpu, cuda, mps; the best there is if not given.
    """
    from ..analysis.report import write_report
    from ..runs.calibrate import Goal, calibrate_run, judge_run, read_calibration, read_policy
    from ..engine.progress import choose_progress

    if mode != "search" and any(wanted is not None for wanted in (gmacs, milliseconds, accuracy, p)):
        raise ValueError(f"a goal is for --mode search; --mode {mode} takes the thresholds that are stored")
    if mode == "stored":
        if run.is_file():
            _print_released(run)
            return
        _print_policy(read_policy(run))
        if stored := read_calibration(run):
            _print_result(stored)
        return
    where: dict[str, Any] = {"judge": judge, "data_name": data, "data_dir": data_dir, "device": device}
    where |= {"batch_size": batch_size, "progress": choose_progress()}
    if mode == "evaluate":
        result = judge_run(run, **where)
    else:
        goal = Goal(gmacs, milliseconds, accuracy, p)
        result = calibrate_run(run, goal, split=split, confidence=confidence, **where)
    _print_policy(read_policy(run))
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
        f"{result['split']} of {result['data']}, {result['samples']} images really leaving",
        ["exit", "leave here", "accuracy if all did", "GMACs", f"ms at batch {policy['batch_size']}"],
        [
            [str(k), f"{share:.1%}", f"{alone:.2%}", f"{cost:.4g}", f"{spent:.4g}"]
            for k, (share, alone, cost, spent) in enumerate(columns, 1)
        ]
        + [["early exit", "", f"{result['accuracy']:.2%}", f"{result['gmacs']:.4g}", f"{result['milliseconds']:.4g}"]],
    )


def _print_released(path: Path) -> None:
    """What a released checkpoint says of itself."""
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
