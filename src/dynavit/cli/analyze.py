"""`dynavit analyze`: what happens inside trained models, in figures."""

import shlex
import sys
from pathlib import Path

from ..common.fits import AtLeastOne
from ..runs.subject import Which
from .next_steps import Step, taken_by, tell_next
from .parse import positional


@positional("runs...")
def analyze(
    runs: list[Path],
    which: Which,
    split: str | None = None,
    images: AtLeastOne = 128,
    shown: AtLeastOne = 2,
    layers: list[str] | str | None = None,
    token: list[float] | str | None = None,
    out: Path | None = None,
    quiet: bool = False,
) -> None:
    """Draw what happens inside trained models: the figures of the DTN paper, several models side by side.

    Token magnitudes after norms, attention distances and maps, how far norms' means are from tokens, λ over training,
    positional weights, token directions, what each DTN layer became; for cascades where images leave and how sure they are.
    All models see the same images. Figures (SVG, PNG) and the numbers behind them (JSON) go to OUT/analysis, and into the
    page OUT/report.html. In Python: `dynavit.analyze_runs(runs)`; for any model: `dynavit.look_inside(model, batches, shown)`.

    Args:
        runs: directories of runs; a comparison stands for the first seed of each of its settings.
        split: test, val or train; test where there is one, otherwise val, if not given.
        images: how many, evenly over the split, numbers are averaged over.
        shown: how many of them maps are drawn of.
        layers: norms that maps are drawn of, such as blocks.0.norm1,blocks.3.norm1; the first, middle and last if not given.
        token: whose positional weights are drawn: 0.5,0.5 is the middle of the image, 0,0 its top left.
        out: directory of the page; the run, or the comparison the runs belong to, if not given.
        quiet: show no summary, progress or next steps.
    """
    from ..engine.progress import choose_progress
    from ..runs.analyze import analyze_runs
    from ..runs.directory import AnyDirectory
    from ..runs.report import task_of

    names = layers.split(",") if isinstance(layers, str) else layers or []
    page = analyze_runs(
        runs,
        out=out,
        split=split,
        images=images,
        shown=shown,
        layers=[name.strip() for name in names if name.strip()],
        token=None if token is None else _place(token),
        progress=choose_progress(quiet),
        command=shlex.join(["dynavit", *sys.argv[1:]]),
        **vars(which),
    )
    print(f"figures and their numbers: {AnyDirectory(page.parent).analysis}")
    print(f"report: {page}")
    steps: list[Step] = [(["robust", *runs], "errors on corrupted images, into the same page")]
    tell_next(*taken_by(task_of(place for run in runs for place in (run, *sorted(run.glob("*/")))), steps), quiet=quiet)


def _place(token: list[float] | str) -> tuple[float, float]:
    words = token.strip("[]").split(",") if isinstance(token, str) else token
    try:
        row, column = map(float, words)
    except ValueError:
        row = column = -1.0
    if not (0 <= row <= 1 and 0 <= column <= 1):
        raise ValueError(f"--token takes two shares of the image's height and width, such as 0.5,0.5; got {token}")
    return row, column
