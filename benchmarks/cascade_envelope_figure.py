"""The figure of docs/results/cascade.md: accuracy on test over time of cascades trained from scratch, and of single models.

python benchmarks/cascade_envelope_figure.py FILE... --out docs/results/cascade_cifar10.svg

Each FILE is what `cascade_envelope.py` wrote. A model that stands in several of them is named once.
"""

import argparse
import json
from pathlib import Path

from matplotlib.figure import Figure

SINGLES = {  # name of the run -> in the legend, marker
    "single-4x4": ("single, 4×4 tokens", "X"),
    "single-2blocks": ("single, 8×8 tokens, 2 blocks", "^"),
    "single-64": ("single, 8×8 tokens, 64 channels", "D"),
}
GOAL = ("single, 8×8 tokens, 4 blocks", "s")
CASCADES = {
    GOAL: ("#d55e00", "cascade, last exit of 4 blocks"),
    SINGLES["single-2blocks"]: ("#009e73", "cascade, last exit of 2 blocks"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    seeds = [seed for file in given.files for seed in json.loads(file.read_text())["seeds"]]
    figure = Figure(figsize=(8.4, 3.8), layout="constrained")
    for axes, batch in zip(figure.subplots(1, 2, sharey=True), ("batch 64", "batch 1"), strict=True):
        named, costs = set(), {}

        def once(label, named=named):
            fresh = label not in named
            named.add(label)
            return label if fresh else None

        for row in seeds:
            found = row[batch]
            first = next(iter(row["singles"]))
            goal, own = SINGLES.get(first.partition("-seed")[0], GOAL), found["milliseconds"][first]
            # Times of different runs of the script differ: a single model takes as long in each as where it came first.
            scale = costs.get(goal, own) / own
            colour, made_from = CASCADES[goal]
            times, tops = zip(*dict.fromkeys((cost * scale, 100 * top) for cost, top in found["curve"]), strict=True)
            axes.plot(times, tops, color=colour, linewidth=1.2, label=once(made_from))
            for name, point in found["early exit"].items():
                planned = name == "early exit"
                left = found["milliseconds"][name] * scale, 100 * point["test"]
                label = once("executed with the planned thresholds" if planned else "and with others")
                axes.plot(*left, "o", color=colour, markersize=7 if planned else 3, label=label)
            for name, single in row["singles"].items():
                kind = SINGLES.get(name.partition("-seed")[0], GOAL)
                time = found["milliseconds"][name] * scale
                costs.setdefault(kind, time)
                axes.plot(time, 100 * single["test"], kind[1], color="#0072b2", label=once(kind[0]))
        axes.set(title=batch, xlabel="ms per image, CPU time")
        axes.margins(x=0.15, y=0.12)
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    images = seeds[0].get("test images", 10_000)  # older files are about CIFAR-10
    figure.axes[0].set_ylabel(f"right of {images:,} test images, %")
    figure.axes[0].legend(frameon=False, loc="lower right", fontsize=7)
    figure.savefig(given.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
