"""The figure of docs/results/ablations.md: test accuracy of DTN's arms by seed, and the paper's for those of its Table 5.

python benchmarks/ablations_figure.py E3.json --out docs/results/ablations_cifar10.svg

The file is what `ablations.py` wrote.
"""

import argparse
import json
from pathlib import Path

from ablations import TABLE_5
from matplotlib.figure import Figure

NAMES = {
    "ln": "LayerNorm",
    "in": "InstanceNorm: inter-\ntoken only, uniform P",
    "inter": "inter-token only,\nlearned P",
    "half": "half of each,\nlearned P",
    "dtn": "DTN",
    "uniform": "DTN,\nuniform P",
}
BLUE, GREY = "#0072b2", "#555555"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found = json.loads(given.file.read_text())["arms"]
    arms = {arm: found[arm] for arm in NAMES if arm in found}
    figure = Figure(figsize=(8.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for place, arm in enumerate(arms.values()):
        tops = list(arm["top1 by seed"].values())
        axes.plot(tops, [place] * len(tops), "o", color=BLUE, alpha=0.6, markersize=5)
        axes.plot([arm["mean"]] * 2, [place - 0.25, place + 0.25], color=BLUE, linewidth=2)
    axes.set_yticks(range(len(arms)), [NAMES[arm] for arm in arms], fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="right of 10,000 test images of CIFAR-10, %: a dot for each seed, a bar for their mean")
    for place, arm in enumerate(arms):
        paper = f"{TABLE_5[arm]:.1f}" if arm in TABLE_5 else "–"
        axes.text(1.02, place, paper, transform=axes.get_yaxis_transform(), va="center", fontsize=8, color=GREY)
    axes.text(1.02, -0.8, "the paper,\nImageNet, %", transform=axes.get_yaxis_transform(), fontsize=8, color=GREY)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(given.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
