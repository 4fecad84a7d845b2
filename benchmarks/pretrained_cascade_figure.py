"""The figure of docs/results/cascade.md: accuracy over time of a cascade from a pre-trained ViT, and of single models.

python benchmarks/pretrained_cascade_figure.py FILE --out docs/results/pretrained_cascade.svg

FILE is what `pretrained_cascade.py` wrote.
"""

import argparse
import json
from pathlib import Path

from matplotlib.figure import Figure

NAMES = {"ln-seed0": "DeiT-Ti, 14×14", "deit-10x10-seed0": "10×10 tokens", "deit-7x7-seed0": "7×7 tokens"}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found = json.loads(options.file.read_text())
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    for axes, batch in zip(figure.subplots(1, 2, sharey=True), ("batch 64", "batch 1"), strict=True):
        times, tops = zip(*dict.fromkeys(map(tuple, found[batch]["curve"])), strict=True)
        axes.plot(times, [100 * top for top in tops], "o-", color="#d55e00", label="cascade, its thresholds", zorder=3)
        for name, single in found["singles"].items():
            time, top = found[batch]["milliseconds"][name], 100 * single["top1"]
            axes.plot(time, top, "s", color="#0072b2", label="single models" if "7x7" in name else None)
            white = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # the cascade's curve may run behind a name
            axes.annotate(NAMES[name], (time, top), (8, -13), textcoords="offset points", fontsize=8, bbox=white, zorder=4)
        axes.set(title=batch, xlabel="ms per image, CPU time", ylim=(90, 98))
        axes.margins(x=0.18)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("right, % of 400 photographs")
    figure.axes[0].legend(frameon=False, loc="lower right", fontsize=8)
    figure.savefig(options.out)
