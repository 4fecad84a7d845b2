"""DTN's ablations (E3 of plan.md): test accuracy by arm and seed, differences to DTN paired by seed, and the paper's order.

    python benchmarks/ablations.py RUNS --out FILE

The run of an arm and a seed is RUNS/ARM-seedS; runs that are not finished are left out. Kendall's tau is over pairs of arms of
the paper's Table 5 whose gap there exceeds twice our standard error of the paired difference: 1, all in the paper's order.
"""

import argparse
from itertools import combinations
from pathlib import Path

from dynavit.analysis.statistics import mean, paired_difference, standard_error
from dynavit.bench.machine import describe_machine
from dynavit.common.files import read_json, write_json
from dynavit.runs.directory import RunDirectory

BASE = "dtn"
TABLE_5 = {"ln": 80.6, "in": 77.6, "inter": 81.2, "half": 81.3, "dtn": 81.7}  # ImageNet top-1 of ViT-S*, %
POINTS = 100


def results(directory):
    """Arm -> seed -> test top-1 in points."""
    found = {}
    for path in sorted(directory.glob("*-seed*")):
        arm, _, seed = path.name.rpartition("-seed")
        run = RunDirectory(path)
        if run.finished() is not None:
            found.setdefault(arm, {})[int(seed)] = POINTS * read_json(run.evaluation_file("test"))["top1"]
    return found


def paper_order(arms):
    """Each pair of Table 5 that our noise lets us ask about, whether it has the paper's order, and tau."""
    pairs = []
    for one, other in combinations([arm for arm in TABLE_5 if arm in arms], 2):
        gaps = [arms[one][seed] - arms[other][seed] for seed in arms[one] if seed in arms[other]]
        error, paper = standard_error(gaps), TABLE_5[one] - TABLE_5[other]
        if error is not None and abs(paper) > 2 * error:
            pairs.append({"pair": [one, other], "paper": paper, "here": mean(gaps), "same": mean(gaps) * paper > 0})
    agree = sum(pair["same"] for pair in pairs)
    return {"pairs": pairs, "tau": (2 * agree - len(pairs)) / len(pairs) if pairs else None}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    arms, rows = results(options.directory), {}
    for arm, by_seed in arms.items():
        found = paired_difference(by_seed, arms[BASE]) if arm != BASE else None
        rows[arm] = {
            "top1 by seed": by_seed,
            "mean": mean(list(by_seed.values())),
            f"less {BASE}": found and {"mean": found.mean, "interval95": found.interval},
        }
        print(arm, rows[arm])
    order = paper_order(arms)
    print(order)
    about = {"command": "python benchmarks/ablations.py RUNS --out FILE", "machine": describe_machine()}
    write_json(options.out, about | {"arms": rows, "paper's Table 5": order})


if __name__ == "__main__":
    main()
