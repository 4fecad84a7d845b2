"""Runs -> one JSON file: options, steps, losses, validation accuracy. Runs that are to choose options show no test results.

python benchmarks/tuning.py runs/tune --out FILE
python benchmarks/tuning.py runs/e1 --test --out FILE          runs that were planned as a result

With --test, runs that are not finished are left out, and norms are compared with `ln` over the seeds they share. With --add,
rows of earlier files are kept, of runs whose folders are gone with their machine; a run in the directory replaces its row.
"""

import argparse
import json
from pathlib import Path

import yaml

from dynavit.analysis.statistics import paired_difference
from dynavit.bench.machine import describe_machine
from dynavit.common.files import write_json

OPTIONS = (
    "model",
    "model_options",
    "norm",
    "norm_options",
    "task",
    "task_options",
    "epochs",
    "batch_size",
    "lr",
    "seed",
    "optim",
    "augment",
    "ema",
)
JUDGED = ("epoch", "weights", "top1", "loss")


def shares(lines):
    """DTN's lambda by norm and head, as the last step left it; empty for other norms."""
    last = next((line["values"] for line in reversed(lines) if line["kind"] == "scalars"), {})
    chosen = {path: {key: each for key, each in found.items() if key.startswith("lambda")} for path, found in last.items()}
    return {path: found for path, found in chosen.items() if found}


def row(run, with_test):
    config = yaml.safe_load((run / "config.yaml").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    logged = [line for line in lines if line["kind"] == "train"]
    test = json.loads((run / "eval" / "test.json").read_text()) if with_test else {}
    return {
        "options": {name: config.get(name) for name in OPTIONS},
        "precision": config["engine"]["precision"],
        "steps": max((line["step"] for line in lines), default=0),
        "finished": (run / "finished.json").is_file(),
        "loss": {line["step"]: round(line["loss"], 4) for line in logged},
        "validation": [
            {key: found for key, found in line.items() if key in JUDGED or key.startswith("exit")}
            for line in lines
            if line["kind"] == "eval"
        ],
        **({"lambda": found} if (found := shares(lines)) else {}),
        **({"test": {key: test[key] for key in ("weights", "top1", "top5", "ece", "samples")}} if test else {}),
    }


def differences(rows):
    """Test top-1 of each norm less that of `ln`, paired by seed; none where a norm and seed have runs of several models."""
    arms = {}
    for found in rows.values():
        arms.setdefault(found["options"]["norm"], {})[found["options"]["seed"]] = found["test"]["top1"]
    if "ln" not in arms or sum(map(len, arms.values())) < len(rows):
        return {}
    found = {norm: paired_difference(tops, arms["ln"]) for norm, tops in arms.items() if norm != "ln"}
    return {
        norm: {"mean": each.mean, "seeds": each.seeds, "interval95": each.interval and list(each.interval)}
        for norm, each in found.items()
        if each
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--test", action="store_true", help="with results on test")
    parser.add_argument("--add", type=Path, nargs="+", default=[], help="files of this script")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    kept = "finished.json" if options.test else "metrics.jsonl"
    earlier = [json.loads(path.read_text()) for path in options.add]
    rows = {name: found for each in earlier for name, found in each["rows"].items()}
    rows |= {run.parent.name: row(run.parent, options.test) for run in sorted(options.directory.glob(f"*/{kept}"))}
    rows = dict(sorted(rows.items()))
    compared = differences(rows) if options.test else {}
    for name, found in rows.items():
        last = found["validation"][-1] if found["validation"] else {"epoch": 0.0, "top1": float("nan")}
        print(
            f"{name:12} {found['steps']:6} steps, validation {last['top1']:.2%} after {last['epoch']:.2f} epochs",
            found.get("test", ""),
        )
    for norm, each in compared.items():
        print(f"{norm} - ln: {each}")
    if options.out is not None:
        flags = " --test" * options.test + " --add FILE" * bool(earlier)
        write_json(
            options.out,
            {
                "command": f"python benchmarks/tuning.py runs/{options.directory.name}{flags}",
                "machine": describe_machine(),
                **(
                    {
                        "machines of added rows": [
                            one for each in earlier for one in (*each.get("machines of added rows", []), each["machine"])
                        ]
                    }
                    if earlier
                    else {}
                ),
                "rows": rows,
                **({"top1_less_that_of_ln": compared} if compared else {}),
            },
        )


if __name__ == "__main__":
    main()
