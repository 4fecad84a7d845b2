"""`dynavit export`: a bundle that needs no training code."""

from pathlib import Path
from typing import Literal

from ..runs.subject import Subject, Which
from .next_steps import tell_next
from .parse import positional
from .show import print_table


@positional("run")
def export(
    run: Path,
    which: Which,
    format: Literal["onnx", "pt2"] = "onnx",
    fold: bool = False,
    int8: bool = False,
    out: Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> None:
    """Write a run's model as ONNX or .pt2, with all that is needed to use it, compared with the run's model.

    A cascade becomes one file for each exit, and with thresholds (`dynavit calibrate`) also one ONNX file that stops by itself.
    `dynavit predict BUNDLE IMAGES...` runs the result. In Python: `dynavit.runs.export.export_run(run)`.

    Args:
        run: directory of a run.
        format: onnx for any runtime, pt2 for torch; a pt2 file can run code, so it is opened with --trust-pt2 only.
        fold: fold norms away first, see `dynavit fold`.
        int8: also write 8-bit weights, with accuracy and time beside float32; onnx only, not for cascades.
        out: where to write; RUN-onnx or RUN-pt2 if not given.
        overwrite: replace a bundle that is there.
        quiet: show no summary, progress or next steps.
    """
    from ..engine.progress import choose_progress
    from ..runs.export import export_run

    where, facts = export_run(
        Subject.of(run, which), format, out, folded=fold, int8=int8, overwrite=overwrite, progress=choose_progress(quiet)
    )
    error = facts["error"]
    print_table(
        f"{where}: {', '.join([*facts['parts'], *([facts['early_exit']] if 'early_exit' in facts else [])])}",
        ["compared with float64", "largest error"],
        [[f"batch {batch}", f"{value:.1e}"] for batch, value in error["at_batch"].items()]
        + [["the model itself in float32", f"{error['model_in_float32']:.1e}"], ["allowed", f"{error['allowed']:.1e}"]],
    )
    if facts["fold"]:
        print("norms: {folded} folded, {partly} partly, {left} left".format(**facts["fold"]))
    if "int8" in facts:
        small = facts["int8"]
        print_table(
            f"8-bit weights, {small['held_out_images']} held-out images, same answer for {small['same_answer']:.2%}",
            ["weights", "top-1", "ms at batch 1", "bytes"],
            [
                [
                    kind,
                    f"{small['accuracy'][kind]:.2%}",
                    f"{small['milliseconds_at_batch_1'][kind]:.3f}",
                    f"{small['bytes'][kind]:,}",
                ]
                for kind in ("float32", "int8")
            ],
        )
    print(f"written to {where}")
    tell_next((["predict", where, "photo.jpg"], "without training code"), quiet=quiet)
