"""RoIAlign by two products against RoIAlign by sampling, forward and backward, in turn: where does each win?

    python benchmarks/roi_forms.py [--quiet] [--out FILE]

CPU time of one thread; the middle of the rounds. `SMALL` of models/detection/roi_align.py follows from this table.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch

from dynavit.bench.machine import describe_machine
from dynavit.common.files import write_json
from dynavit.models.detection.roi_align import SMALL, roi_align, roi_align_separable

FORMS = {"sampling": roi_align, "products": roi_align_separable}
ROUNDS = 7
STRIDE = 4
CASES = [  # channels, side of the map, boxes, bins
    (64, 8, 16, 7), (64, 16, 32, 7), (64, 32, 64, 7), (64, 32, 32, 14), (64, 64, 64, 7),
    (256, 25, 128, 7), (256, 50, 128, 7), (256, 50, 64, 14), (256, 100, 128, 7), (256, 200, 128, 7),
]  # fmt: skip


def seconds(form, features, boxes, bins):
    features.grad = None
    began = time.process_time()
    form(features, boxes, bins, 1 / STRIDE, 2).sum().backward()
    return time.process_time() - began


def measure(channels, side, count, bins):
    features = torch.randn(channels, side, side, requires_grad=True)
    corner = torch.rand(count, 2) * side * STRIDE / 2
    boxes = torch.cat([corner, corner + 1 + torch.rand(count, 2) * side * STRIDE / 2], 1)
    found = {name: [] for name in FORMS}
    for _ in range(ROUNDS + 1):
        for name, form in FORMS.items():
            found[name].append(seconds(form, features, boxes, bins))
    middle = {name: statistics.median(times[1:]) for name, times in found.items()}  # the first warms up
    case = {"channels": channels, "side": side, "boxes": count, "bins": bins, "products_taken": side**2 <= SMALL * bins}
    return case | {"seconds": middle, "sampling / products": middle["sampling"] / middle["products"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quiet", action="store_true", help="nothing else is running: times can be trusted")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for case in CASES:
        rows.append(measure(*case))
        form = "products" if rows[-1]["products_taken"] else "sampling"
        print(*case, f"{rows[-1]['sampling / products']:.2f}", form, flush=True)
    if given.out:
        command = "python benchmarks/roi_forms.py" + (" --quiet" if given.quiet else "")
        write_json(given.out, {"command": command, "quiet": given.quiet, "machine": describe_machine(), "cases": rows})


if __name__ == "__main__":
    main()
