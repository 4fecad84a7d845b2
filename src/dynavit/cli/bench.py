"""`dynavit bench`: measurements, printed as tables."""

import sys
from pathlib import Path

from ..common.fits import AtLeastOne, Pixels
from ..engine.config import Threads
from ..runs.config import TrainConfig
from .show import print_table, progress


def bench_norms(
    norms: list[str] | str | None = None,
    shapes: list[str] | str | None = None,
    repeats: AtLeastOne = 30,
    sweep: bool = True,
    threads: Threads | None = None,
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


def bench_models(
    models: list[str] | str | None = None,
    sizes: bool = True,
    steps: bool = True,
    repeats: AtLeastOne = 7,
    batch: AtLeastOne = 8,
    img_size: Pixels = 224,
    threads: Threads | None = None,
    out: Path | None = None,
) -> None:
    """Measure whole models with DTN beside LN: size next to the paper's figures, time and memory of a training step.

    Args:
        models: which of the paper's models, such as vit_small_star,pvt_tiny; all of them if not given.
        sizes: parameters and multiply-adds; --no-sizes leaves them out.
        steps: training steps; --no-steps leaves them out.
        repeats: how often each training step is repeated.
        batch: images in a training step.
        img_size: their side in pixels.
        threads: CPU threads for torch; its own choice if not given.
        out: write everything that was measured to this JSON file.
    """
    from ..bench.models import run_model_bench

    with progress() as tell:
        result = run_model_bench(_names(models), sizes, steps, repeats, batch, img_size, threads, out, tell)
    for title, header, rows in result.tables():
        print_table(title, header, rows)
    if out is not None:
        print(f"written to {out}", file=sys.stderr)


def _names(given: list[str] | str | None) -> list[str] | None:
    """`ln,dtn` on the command line, a list in a file."""
    if isinstance(given, str):
        return [name.strip() for name in given.split(",") if name.strip()]
    return given


def bench_loop(config_of_run: TrainConfig, steps: AtLeastOne = 100, out: Path | None = None) -> None:
    """Measure the training loop against a bare one: what data, logging and checkpoints cost.

    Takes the options of `dynavit train`: `dynavit bench loop --config cifar10 --data-dir D`.

    Args:
        steps: training steps, each beside one of the bare loop.
        out: write what was measured to this JSON file.
    """
    from ..bench.loop import measure_loop
    from ..common.files import write_json
    from ..runs.assemble import decided, open_training_data, training_task
    from ..runs.config import to_plain

    data = open_training_data(config_of_run)
    config = decided(config_of_run, data)
    task, loader = training_task(config, data)
    cost = measure_loop(task, loader, config.plan, steps)
    (low, high), whole = cost.step_ratio_quartiles, f"{cost.whole_ratio:.3f}"
    print_table(
        f"{config.model} on {config.data}, batch {cost.batch_size}, {cost.steps} steps",
        ["loop", "step", "ratio", "quartiles", "with checkpoint and start"],
        [
            ["bare", f"{cost.bare_step * 1e3:.1f} ms", "1.000", "-", "1.000"],
            ["dynavit", f"{cost.loop_step * 1e3:.1f} ms", f"{cost.step_ratio:.3f}", f"{low:.3f}-{high:.3f}", whole],
        ],
    )
    if out is not None:
        write_json(out, cost.to_json(config=to_plain(config)))
        print(f"written to {out}", file=sys.stderr)
