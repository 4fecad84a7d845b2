"""DTN's ablations (E3 of plan.md): test accuracy by arm and seed, differences to DTN paired by seed, and the paper's order.

    python benchmarks/ablations.py E2.json E3.json --out FILE

The files are what `tuning.py --test` wrote, with rows named ARM-seedS. Kendall's tau is over pairs of arms of the paper's
Table 5 whose gap there exceeds twice our standard error of the paired difference: 1, all in the paper's order.
"""

import argparse
from itertools import combinations
from pathlib import Path

from dynavit.analysis.statistics import mean, paired_difference, standard_error
from dynavit.bench.machine import describe_machine
from dynavit.common.files import read_json, write_json

BASE = "dtn"
TABLE_5 = {"ln": 80.6, "in": 77.6, "inter": 81.2, "half": 81.3, "dtn": 81.7}  # ImageNet top-1 of ViT-S*, %
ARMS = (*TABLE_5, "uniform")
POINTS = 100


def results(files):
    """Arm -> seed -> test top-1 in points."""
    found = {}
    for file in files:
        for name, row in read_json(file)["rows"].items():
            arm, _, seed = name.rpartition("-seed")
            found.setdefault(arm, {})[int(seed)] = POINTS * row["test"]["top1"]
    return found


def paper_order(arms):
    """Each pair of Table 5: the paper's gap, ours and its interval, if our noise lets us ask, same order or not; then tau."""
    pairs = []
    for one, other in combinations([arm for arm in TABLE_5 if arm in arms], 2):
        gaps = [arms[one][seed] - arms[other][seed] for seed in arms[one] if seed in arms[other]]
        found, error = paired_difference(arms[one], arms[other]), standard_error(gaps)
        paper = round(TABLE_5[one] - TABLE_5[other], 1)
        pairs.append(
            {
                "pair": [one, other],
                "paper": paper,
                "here": found.mean,
                "interval95": found.interval,
                "asked": error is not None and abs(paper) > 2 * error,
                "same order": found.mean * paper > 0,
            }
        )
    asked = [pair["same order"] for pair in pairs if pair["asked"]]
    return {"pairs": pairs, "tau": (2 * sum(asked) - len(asked)) / len(asked) if asked else None}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    everything = results(options.files)
    arms, rows = {arm: everything[arm] for arm in ARMS if arm in everything}, {}
    for arm, by_seed in arms.items():
        found = paired_difference(by_seed, arms[BASE]) if arm != BASE else None
        rows[arm] = {
            "top1 by seed": by_seed,
            "mean": mean(list(by_seed.values())),
            f"less {BASE}": found and {"mean": found.mean, "interval95": found.interval},
        }
        print(arm, rows[arm])
    order = paper_order(arms)
    print(*order["pairs"], order["tau"], sep="\n")
    about = {"command": "python benchmarks/ablations.py E2.json E3.json --out FILE", "machine": describe_machine()}
    write_json(options.out, about | {"arms": rows, "paper's Table 5": order})


if __name__ == "__main__":
    main()
