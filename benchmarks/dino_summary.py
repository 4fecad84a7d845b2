"""Runs of self-distillation that were judged -> one JSON file for benchmarks/results, a table, and a figure of k-NN by step.

python benchmarks/dino_summary.py $RUNS/dino/*-seed? --out benchmarks/results/DATE-dino-tier-HARDWARE.json \\
    --figure docs/results/self_supervision.png

A run is named ARM-seedS, has ended, and was judged by `dynavit eval RUN --protocol knn,linear_cached`. Differences are to
the arm `ln-late`, paired by seed.
"""

import argparse
import json
import re
from pathlib import Path

from dynavit.analysis.report.blocks import Figure
from dynavit.analysis.report.figures.axes import on_axes
from dynavit.analysis.report.figures.canvas import svg_and_png
from dynavit.analysis.statistics import mean, paired_difference, standard_error
from dynavit.bench.machine import describe_machine
from dynavit.common.files import write_bytes, write_json
from dynavit.engine.log import read_log
from dynavit.runs.directory import RunDirectory

PROTOCOLS = ("knn", "linear_cached")
BASELINE = "ln-late"


def read(path):
    """What one run gave: both protocols with their baselines, the course of the monitor, and the last look at the codes."""
    run = RunDirectory(path)
    lines = list(read_log(run.metrics_file))
    found = {}
    for protocol in PROTOCOLS:
        judged = json.loads(run.probe_file(protocol, "model", "").read_text())
        found[protocol] = {who: judged[who]["top1"] for who in ("model", "random", "pixels")} | {"verdict": judged["verdict"]}
    looks = [line["values"]["task:"] for line in lines if line["kind"] == "scalars"]
    codes = {name: looks[-1][name][0] for name in ("information", "effective_rank", "prototypes_used", "collapsed")}
    course = [
        {name: line[name] for name in ("step", "knn", "linear", "knn_pixels")} for line in lines if line["kind"] == "eval"
    ]
    environment = json.loads((run.path / "env.json").read_text())
    return {**found, "codes": codes, "course": course, "commit": environment["commit"], "command": environment["command"]}


def summary(runs):
    """{arm: {protocol: mean, error, difference}} of {arm: {seed: run}}."""
    rows = {}
    for arm, by_seed in runs.items():
        rows[arm] = {}
        for protocol in PROTOCOLS:
            own = {seed: run[protocol]["model"] for seed, run in by_seed.items()}
            base = {seed: run[protocol]["model"] for seed, run in runs.get(BASELINE, {}).items()}
            difference = paired_difference(own, base) if arm != BASELINE and own.keys() & base.keys() else None
            rows[arm][protocol] = {
                "mean": mean(list(own.values())),
                "standard_error": standard_error(list(own.values())) if len(own) > 1 else None,
                "difference_to_ln_late": difference.mean if difference else None,
                "interval95": list(difference.interval) if difference and difference.interval else None,
            }
    return rows


def figure(runs):
    def paint(axes):
        for number, (arm, by_seed) in enumerate(runs.items()):
            for seed, run in by_seed.items():
                course = run["course"]
                name = {"label": arm} if seed == min(by_seed) else {}
                places = [each["step"] for each in course], [100 * each["knn"] for each in course]
                axes.plot(*places, marker=".", lw=1, color=f"C{number}", **name)
        pixels = 100 * next(iter(next(iter(runs.values())).values()))["course"][-1]["knn_pixels"]
        axes.axhline(pixels, color="0.6", lw=0.8, dashes=(3, 2), label="pixels")
        axes.set_xlabel("step")
        axes.set_ylabel("k-NN on validation, %")
        axes.legend(frameon=False)

    return Figure("k-NN over training", "", 2.4, on_axes(paint))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    runs = {}
    for path in options.runs:
        arm, seed = re.fullmatch(r"(.+)-seed(\d+)", path.name).groups()
        runs.setdefault(arm, {})[int(seed)] = read(path)
    rows = summary(runs)
    write_json(options.out, {"machine": describe_machine(), "summary": rows, "runs": runs})
    if options.figure:
        write_bytes(options.figure, svg_and_png("self_supervision", figure(runs))[1])
    for arm, by_seed in runs.items():
        for protocol in PROTOCOLS:
            own = ", ".join(
                "{model:.1%} (random {random:.1%}, pixels {pixels:.1%})".format(**r[protocol]) for r in by_seed.values()
            )
            print(f"{arm:10} {protocol:14} {own}  {rows[arm][protocol]}")
