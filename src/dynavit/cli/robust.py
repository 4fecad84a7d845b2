"""`dynavit eval RUN --robust`: what is printed."""

import json as json_
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .show import print_table

TITLES = {
    "corruptions": "errors on corrupted images",
    "imagenet_c": "errors on ImageNet-C",
    "imagenet_r": "ImageNet-R",
    "imagenet_a": "ImageNet-A",
}


def evaluate_robustness(run: Path, options: Mapping[str, Any], json: bool) -> None:
    from ..analysis.report import write_report
    from ..runs.corrupted import DIRECTORY
    from ..engine.progress import choose_progress
    from ..runs.robustness import evaluate_robust

    corruptions = options["corruptions"]
    names = None if corruptions is None else [name.strip() for name in corruptions.split(",") if name.strip()]
    main = os.environ.get("RANK", "0") == "0"  # one of torchrun's processes is enough to tell
    results = evaluate_robust(run, **{**options, "corruptions": names}, progress=choose_progress(quiet=json or not main))
    if not main:
        return
    page = write_report(run)
    if json:
        print(json_.dumps(results))
        return
    for kind, result in results.items():
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
        print(f"written to {run / DIRECTORY / f'{kind}.json'}")
    print(f"report: {page}")


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
