"""`dynavit fold`: a run without its foldable norms."""

from pathlib import Path
from typing import Literal

from .parse import positional


@positional("run")
def fold(
    run: Path,
    out: Path | None = None,
    checkpoint: Literal["last", "best"] = "last",
    weights: Literal["model", "ema"] | None = None,
    recalibrate: int | None = None,
    overwrite: bool = False,
) -> None:
    """Move norms that are affine maps at evaluation into the linear layers around them.

    The result is compared with the run's model and written as a run of its own, for eval, predict, calibrate and export.
    In Python: `dynavit.runs.fold.fold_run(run)`, or `dynavit.fold(model)` for a model.

    Args:
        run: directory of a run.
        out: where to write; RUN-folded if not given.
        checkpoint: the end of the training, or where validation was best.
        weights: the trained ones or their average; the average if the run kept one.
        recalibrate: first recompute statistics of the norms on so many batches of 64 training images.
        overwrite: replace a folded run that is there.
    """
    from ..runs.export import fold_run

    where, report = fold_run(run, out, checkpoint=checkpoint, weights=weights, recalibrate=recalibrate, overwrite=overwrite)
    print(report)
    print(f"written to {where}")
