"""`dynavit robust`: errors of trained models on corrupted images."""

import json as json_
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..common.fits import AtLeastOne, Seed
from ..runs.subject import Which
from .next_steps import Step, tell_next
from .parse import positional
from .show import print_table

ALL_SEVERITIES = [1, 2, 3, 4, 5]
NO_RUNS: list[Path] = []
TITLES = {
    "corruptions": "errors on corrupted images",
    "imagenet_c": "errors on ImageNet-C",
    "imagenet_r": "ImageNet-R",
    "imagenet_a": "ImageNet-A",
}


@positional("runs...")
def robust(
    which: Which,
    runs: list[Path] = NO_RUNS,
    baseline: str | None = None,
    split: str | None = None,
    corruptions: str | None = None,
    severities: list[int] = ALL_SEVERITIES,
    limit: AtLeastOne | None = None,
    seed: Seed = 0,
    exact: bool = False,
    processes: AtLeastOne = 1,
    batch_size: AtLeastOne = 256,
    imagenet_c: Path | None = None,
    imagenet_r: Path | None = None,
    imagenet_a: Path | None = None,
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Measure errors under 15 corruptions at 5 severities, the gap to clean images, and mCE.

    Everything goes to RUN/eval/robust and into the report. Called again it goes on where it was interrupted. A comparison
    stands for its finished runs, each compared with the baseline's run of the same seed. In Python:
    `dynavit.evaluate_robust(run)`, `dynavit.runs.robustness.evaluate_robust_runs(runs)`.

    Args:
        runs: directories of runs or comparisons.
        baseline: what mCE compares with: a run, or alexnet. If not given: alexnet's published errors for ImageNet's classes,
            otherwise the first of several runs.
        split: test, val or train; test where there is one, otherwise val, if not given.
        corruptions: only these, such as fog,frost.
        severities: only these, such as 1,3,5.
        limit: use only so many images, evenly over the split.
        seed: of the corruptions.
        exact: corrupt with the code of the [robust] extra.
        processes: so many corruptions at the same time.
        batch_size: images at a time.
        imagenet_c: folder of ImageNet-C, whose files replace computed corruptions.
        imagenet_r: folder of ImageNet-R; without --corruptions nothing else is evaluated.
        imagenet_a: folder of ImageNet-A, likewise.
        json: print all results as JSON, by run, and nothing else.
        quiet: show no summary, progress or next steps.
    """
    from ..engine.progress import choose_progress
    from ..runs.directory import RunDirectory
    from ..runs.robustness import evaluate_robust_runs

    names = None if corruptions is None else [name.strip() for name in corruptions.split(",") if name.strip()]
    main = os.environ.get("RANK", "0") == "0"  # one of torchrun's processes is enough to tell
    options: dict[str, Any] = {"split": split, "corruptions": names, "severities": severities, "limit": limit, "seed": seed}
    options |= {"exact": exact, "processes": processes, "batch_size": batch_size}
    options |= {"imagenet_c": imagenet_c, "imagenet_r": imagenet_r, "imagenet_a": imagenet_a}
    progress = choose_progress(quiet or json or not main)
    results, pages = evaluate_robust_runs(runs, baseline=baseline, progress=progress, **options, **vars(which))
    if not main:
        return
    if json:
        print(json_.dumps({str(run): found for run, found in results.items()}))
        return
    for run, found in results.items():
        for kind, result in found.items():
            _print(run, kind, result)
            print(f"written to {RunDirectory(run).robustness_file(kind)}")
    for page in pages:
        print(f"report: {page}")
    steps: list[Step] = [(["analyze", *runs], "figures of their inside")]
    if baseline is None and len(runs) == 1:
        steps.insert(0, (["robust", "BASELINE", *runs], "mCE against another run"))
    tell_next(*steps, quiet=quiet)


def _print(run: Path, kind: str, result: Mapping[str, Any]) -> None:
    if "errors" in result:
        _print_corruptions(run, kind, result)
    else:
        print_table(
            f"{run}: {TITLES[kind]}, {result['samples']} images, {result['classes']} classes",
            ["measure", "value"],
            [["error", f"{result['error']:.2%}"], ["top-1", f"{result['top1']:.2%}"], ["top-5", f"{result['top5']:.2%}"]],
        )
    for note in result["notes"]:
        print(f"note: {note}")


def _print_corruptions(run: Path, kind: str, result: Mapping[str, Any]) -> None:
    images, against = result["conditions"]["images"], result["baseline"]
    which = f": {images['split']} of {images['data']}, {images['samples']} images" if kind == "corruptions" else ""
    compared = [f"CE against {against['name']}"] if against else []
    print_table(
        f"{run}: {TITLES[kind]}{which}, in %",
        ["corruption", *(f"severity {severity}" for severity in result["severities"]), "mean", *compared],
        [
            [
                name,
                *(f"{100 * error:.1f}" for error in errors),
                f"{100 * sum(errors) / len(errors):.1f}",
                *([_text(result["ce"][name])] if against else []),
            ]
            for name, errors in result["errors"].items()
        ],
    )
    clean, gap = (None if result[name] is None else 100 * result[name] for name in ("clean_error", "gap"))
    rows = [
        ["error on clean images", _text(clean)],
        ["mean error under corruption", _text(100 * result["mean_error"])],
        ["gap", _text(gap)],
    ]
    if against:
        rows += [["mCE", _text(result["mce"])], ["relative mCE", _text(result["relative_mce"])]]
    print_table("all corruptions, in %", ["measure", "value"], rows)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
