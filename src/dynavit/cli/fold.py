"""`dynavit fold`: a run without its foldable norms."""

import re
from pathlib import Path

from ..common.fits import AtLeastOne
from ..runs.subject import Subject, Which
from .next_steps import Step, tell_next
from .parse import positional


@positional("run")
def fold(
    run: Path,
    which: Which,
    out: Path | None = None,
    recalibrate: AtLeastOne | None = None,
    grid: str | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> None:
    """Move norms that are affine maps at evaluation into the linear layers around them.

    The result is compared with the run's model and written as a run of its own, for eval, predict, calibrate and export.
    In Python: `dynavit.runs.fold.fold_run(run)`, or `dynavit.fold(model)` for a model.

    Args:
        run: directory of a run.
        out: where to write; RUN-folded if not given.
        recalibrate: first recompute statistics of the norms on so many batches of 64 training images, varied as in
            training.
        grid: freeze every DTN for this grid of tokens, such as 14x14, which makes it cheaper and takes no other.
        overwrite: replace a folded run that is there.
        quiet: show no summary, progress or next steps.
    """
    from ..engine.progress import choose_progress
    from ..runs.fold import fold_run

    where, report = fold_run(
        Subject.of(run, which),
        out,
        recalibrate=recalibrate,
        grid=None if grid is None else _grid(grid),
        overwrite=overwrite,
        progress=choose_progress(quiet),
    )
    print(report)
    print(f"written to {where}")
    steps: list[Step] = [(["eval", where], "the same accuracy"), (["export", where], "an ONNX bundle")]
    tell_next(*steps, quiet=quiet)


def _grid(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)x(\d+)", text)
    if not found or "0" in found.groups():
        raise ValueError(f"--grid is rows x columns of tokens, such as 14x14; got {text}")
    return int(found[1]), int(found[2])
