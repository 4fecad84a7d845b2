"""`dynavit bench`: measurements, printed as tables."""

import sys
from pathlib import Path

from .show import print_table, progress


def bench_norms(
    norms: list[str] | str | None = None,
    shapes: list[str] | str | None = None,
    repeats: int = 30,
    sweep: bool = True,
    threads: int | None = None,
    out: Path | None = None,
) -> None:
    """Measure every normaliser against nn.LayerNorm: time, memory kept for backward, arithmetic.

    Timings are interleaved repeats in one process and are shown as ratios: absolute times change with the machine and its
    other work, ratios much less.

    Args:
        norms: which normalisers, such as ln,dtn; all of them if not given.
        shapes: which input shapes, such as A,C; all of them if not given.
        repeats: how often each measurement is repeated.
        sweep: also show how the cost grows with the grid; --no-sweep leaves that out.
        threads: CPU threads for torch; its own choice if not given.
        out: write everything that was measured to this JSON file.
    """
    from ..bench.norms import run_norm_bench

    with progress() as tell:
        result = run_norm_bench(
            norms=_names(norms),
            shapes=_names(shapes),
            repeats=repeats,
            sweep=sweep,
            threads=threads,
            out=out,
            progress=tell,
        )
    for title, header, rows in result.tables():
        print_table(title, header, rows)
    if out is not None:
        print(f"written to {out}", file=sys.stderr)


def _names(given: list[str] | str | None) -> list[str] | None:
    """`ln,dtn` on the command line, a list in a file."""
    if isinstance(given, str):
        return [name.strip() for name in given.split(",") if name.strip()]
    return given
