"""Validation accuracy over epochs of the runs of E1, from the file that tuning.py wrote.

python benchmarks/e1_figure.py RESULTS.json --out FIGURE.svg
"""

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt

COLOURS = {"dtn": "#d55e00", "ln": "#0072b2"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    plt.rcParams["svg.fonttype"] = "none"
    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    for row in json.loads(given.results.read_text())["rows"].values():
        norm, seed = row["options"]["norm"], row["options"]["seed"]
        curve = [(line["epoch"], 100 * line["top1"]) for line in row["validation"] if line["weights"] == "ema"]
        axes.plot(*zip(*curve, strict=True), color=COLOURS[norm], marker="o", markersize=3)
        lowest = norm == "ln"
        axes.annotate(f"{norm}, seed {seed}", curve[-1], (0, -12 if lowest else 6), textcoords="offset points", ha="right")
    axes.set(xlabel="epoch", ylabel="right of 5,000 validation images, %")
    axes.set_ylim(66, 90)
    axes.set_xticks(range(0, 21, 4))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    figure.savefig(given.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
