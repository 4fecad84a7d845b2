"""Fold the runs of a comparison and evaluate both: is the accuracy of the folded model that of its source?

python benchmarks/folded_accuracy.py runs/norms [--out FILE]
"""

import argparse
import tempfile
from pathlib import Path

from dynavit.common.files import write_json
from dynavit.norms.factory import folds
from dynavit.runs.evaluate import evaluate_run
from dynavit.runs.fold import fold_run
from dynavit.runs.model_files import ModelCard


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("comparison", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for run in sorted(path.parent for path in options.comparison.glob("*/model.json")):
        if not folds(ModelCard.read(run).model.get("norm") or "ln"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            folded, report = fold_run(run, Path(folder) / "folded")
            top1 = {name: evaluate_run(which)["top1"] for name, which in (("unfolded", run), ("folded", folded))}
        rows.append(
            {"run": run.name, **top1, "norms left": report.count("left") + report.count("partly"), "error": report.error}
        )
        print(rows[-1], flush=True)
    if options.out is not None:
        write_json(options.out, {"command": f"folded_accuracy.py {options.comparison.name}", "rows": rows})


if __name__ == "__main__":
    main()
