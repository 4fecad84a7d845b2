"""How long finding thresholds takes: 50,000 images, three exits, 59 budgets.

    python benchmarks/calibration.py

The scores are made up; only their number matters.
"""

import numpy as np

from dynavit.bench.machine import describe_machine
from dynavit.bench.timing import time_interleaved
from dynavit.models.cascade.calibration import released_thresholds, simulate, trade_off

IMAGES, BUDGETS = 50_000, 59
COST = (0.468, 1.446, 3.455)  # GMACs of dvt_t2t_vit_12


def main():
    rng = np.random.default_rng(0)
    skill, ease = np.array([[0.6], [0.8], [1.0]]), rng.random(IMAGES)
    correct = rng.random((3, IMAGES)) < 0.2 + 0.8 * ease**0.5 * skill
    conf = np.clip(ease * skill + 0.15 * rng.standard_normal((3, IMAGES)), 0.001, 1).astype(np.float32)

    def released():
        return simulate(conf, correct, COST, released_thresholds(conf, range(1, BUDGETS + 1)))

    def direct():
        curve = trade_off(conf, correct, COST)
        return [curve.for_budget(budget) for budget in np.linspace(COST[0], COST[-1], BUDGETS)]

    print(describe_machine())
    print(f"{IMAGES} images, 3 exits, {BUDGETS} budgets; median of 7, in ms")
    for name, timing in time_interleaved({"released grid": released, "direct": direct}, repeats=7).items():
        print(f"{name:15s} {1e3 * timing.median:8.1f}")


if __name__ == "__main__":
    main()
