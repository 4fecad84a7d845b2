"""The figure of docs/results/norms.md: right answers of norms on CIFAR-10 over training, and on test by seed.

python benchmarks/e2_figure.py E2.json --equal-time TIME.json --out docs/results/norms_cifar10.svg

Both files are what `tuning.py --test` wrote.
"""

import argparse
import json
from pathlib import Path
from statistics import mean

from matplotlib.figure import Figure

COLOURS = {"ln": "#0072b2", "dtn": "#d55e00", "in": "#009e73", "bn": "#9467bd"}
GREY = "#555555"
NAMES = {
    "ln": "LayerNorm",
    "dtn": "DTN",
    "in": "InstanceNorm",
    "ldfn": "LDFN",
    "un": "UN",
    "prepbn": "PRepBN",
    "bn": "BatchNorm",
}


def by_seed(file, norm):
    rows = [row for row in json.loads(file.read_text())["rows"].values() if row["options"]["norm"] == norm]
    return sorted(rows, key=lambda row: row["options"]["seed"])


def curve(row):
    return [(line["epoch"], 100 * line["top1"]) for line in row["validation"] if line["weights"] == "ema"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--equal-time", type=Path, help="DTN for as long as LN takes")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    figure = Figure(figsize=(9.2, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.3])
    for norm, at in (("in", (3.2, 88.0)), ("dtn", (5.8, 81.8)), ("ln", (5.8, 80.2))):
        for row in by_seed(given.file, norm):
            left.plot(*zip(*curve(row), strict=True), color=COLOURS[norm], linewidth=1, alpha=0.7)
        left.text(*at, f"{NAMES[norm]}, {len(by_seed(given.file, norm))} seeds", color=COLOURS[norm])
    left.set(xlabel="epoch", ylabel="right of 5,000 validation images, %", ylim=(68, 90))

    arms = {NAMES[norm]: by_seed(given.file, norm) for norm in ("ln", "dtn")}
    if given.equal_time is not None:
        arms["DTN, equal time"] = by_seed(given.equal_time, "dtn")
    arms |= {NAMES[norm]: by_seed(given.file, norm) for norm in ("in", "bn", "ldfn", "prepbn", "un")}
    arms = {name: rows for name, rows in arms.items() if rows}
    for place, rows in enumerate(arms.values()):
        tops = [100 * row["test"]["top1"] for row in rows]
        colour = COLOURS.get(rows[0]["options"]["norm"], GREY)
        right.plot([place] * len(tops), tops, "o", color=colour, alpha=0.6, markersize=5)
        right.plot([place - 0.25, place + 0.25], [mean(tops)] * 2, color=colour, linewidth=2)
        right.annotate(f"{mean(tops):.1f}", (place + 0.28, mean(tops)), va="center", fontsize=8, color=colour)
    right.set_xticks(
        range(len(arms)), [name.replace(", ", " ").replace("Norm", " Norm").replace(" ", "\n") for name in arms], fontsize=8
    )
    right.set(ylabel="right of 10,000 test images, %", xlim=(-0.5, len(arms) - 0.3))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
    figure.savefig(given.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
