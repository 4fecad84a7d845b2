"""Comparison directories (`dynavit compare`) -> one JSON file for benchmarks/results: main metric per seed, means, differences.

python benchmarks/summarise.py runs/cifar10 runs/fashion --out benchmarks/results/DATE-norms-on-images.json
"""

import argparse
import json
from pathlib import Path

from dynavit.analysis.report.read import Comparison, read_comparison
from dynavit.analysis.statistics import mean, paired_difference, standard_error
from dynavit.common.files import write_json


def summary(comparison: Comparison, directory: Path) -> dict:
    split, rows, metric = comparison.split, [], comparison.shown_metric.name
    base = comparison.baseline.results(split, metric) if comparison.baseline else {}
    for setting in comparison.settings:
        found = setting.results(split, metric)
        row = {"name": setting.name, f"{metric}_by_seed": found, "mean": mean(list(found.values()))}
        row["standard_error"] = standard_error(list(found.values())) if len(found) > 1 else None
        if base and setting.name != comparison.baseline.name:
            difference = paired_difference(found, base)
            row["difference_to_baseline"] = {
                "mean": difference.mean,
                "interval95": list(difference.interval) if difference.interval else None,
            }
        rows.append(row | {"cost": setting.cost, "epochs": setting.runs[0].config["epochs"]})
    stored = json.loads((directory / "comparison.json").read_text())
    facts = {key: stored[key] for key in ("title", "created", "command", "machine", "seeds")}
    commit = comparison.runs[0].environment.get("commit")
    return {**facts, "commit": commit, "split": split, "settings": rows, "failures": stored.get("failures", {})}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directories", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    result = [summary(read_comparison(directory), directory) for directory in options.directories]
    write_json(options.out, result)
    for comparison in result:
        print(comparison["title"])
        for row in comparison["settings"]:
            error = "" if row["standard_error"] is None else f"± {row['standard_error']:.2%}"
            print(f"  {row['name']:6} {row['mean']:.2%} {error}", row.get("difference_to_baseline", ""))
