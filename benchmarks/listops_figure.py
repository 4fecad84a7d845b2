"""The figure of docs/results/listops.md: accuracies of norms over the lines of simple readers, from a results file.

python benchmarks/listops_figure.py benchmarks/results/2026-11-18-listops-vanilla-epyc-avx512-1thread.json \\
    --out docs/results/listops.png

The lines are those of the training split of `listops_short`, which is made again for it.
"""

import argparse
import json
from pathlib import Path

from dynavit.analysis.report.figures.canvas import svg_and_png
from dynavit.analysis.report.figures.dots import mean_row
from dynavit.analysis.report.figures.ladder import ladder_figure
from dynavit.common.files import write_bytes
from dynavit.data.config import DataConfig
from dynavit.data.listops.open import open_listops

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    (comparison,) = json.loads(options.file.read_text())
    rungs = open_listops(None, DataConfig()).ladder[:3]
    rows = [
        mean_row(each["name"], number, [100 * value for value in each["accuracy_by_seed"].values()])
        for number, each in enumerate(comparison["settings"])
    ]
    figure = ladder_figure(comparison["title"], "", rows, rungs)
    write_bytes(options.out, svg_and_png("listops", figure)[1])
    print(", ".join(f"{rung['name']} {rung['accuracy']:.2%}" for rung in rungs))
