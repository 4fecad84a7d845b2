"""What norms cost in a detector: multiply-adds by part at 800 x 1333, and CPU time of the pyramid at a small size.

    OMP_NUM_THREADS=1 python benchmarks/detection_cost.py [--size 800 1344] [--time 256 320] [--out FILE]

GMACs are counted on tensors without memory, by torch's counter and the dense separable formula of DTN, for images that fill
their batch; what the C kernel skips, and masks, are not in them. Mask R-CNN looks at 1,000 proposals and draws 100 masks.
Times are CPU seconds of one process, arms interleaved: a forward pass, and a training pass (forward and backward), of the
pyramid.
"""

import argparse
import statistics
import time

import torch

from dynavit import create_model
from dynavit.bench.flops import count_macs
from dynavit.bench.machine import describe_machine
from dynavit.common.files import write_json
from dynavit.models.detection.maskrcnn import BOX_BINS, MASK_BINS
from dynavit.models.detection.pyramid import build_pyramid
from dynavit.norms.factory import norm_class_of, options_of

PROPOSALS, MASKS = 1000, 100
POOL = (4, 2, 1)


def arms():
    """Of each arm the norm and options of the backbone."""
    found = {"LN": ("ln", {}), "DTN": ("dtn", {})}
    # Pooled cells keep second moments if the norm has the option itself; the released form, which loses them, costs the same.
    pooled = "dtn" if "pool" in options_of(norm_class_of("dtn")) else "dtn_released"
    return {**found, "DTN pooled": (pooled, {"norm_pool": POOL})}


def gmacs(detector, backbone, norm, options, size):
    with torch.device("meta"):
        model = create_model(detector, norm, backbone=backbone, backbone_options=options).eval()
        images = torch.empty(1, 3, *size)
        parts = {"backbone": count_macs(model.pyramid, images)}
        maps = model.pyramid(images)
        parts["fpn"] = count_macs(model.fpn, maps)
        levels, width = model.fpn(maps), model.fpn.width
        if detector == "retinanet":
            parts["head"] = sum(count_macs(tower, x) for tower in (model.classify, model.locate) for x in levels)
        else:
            parts["proposals"] = sum(count_macs(model.proposal_head, x) for x in levels)
            parts["boxes"] = count_macs(model.box_head, torch.empty(PROPOSALS, width, BOX_BINS, BOX_BINS))
            parts["masks"] = count_macs(model.mask_head, torch.empty(MASKS, width, MASK_BINS, MASK_BINS))
    parts = {part: macs / 1e9 for part, macs in parts.items()}
    return {**parts, "all": sum(parts.values())}


class Arm:
    def __init__(self, backbone, norm, options, size):
        torch.manual_seed(0)
        self.pyramid = build_pyramid(backbone, norm=norm, options=options)
        self.images, self.forward, self.training = torch.randn(1, 3, *size), [], []

    def measure(self):
        with torch.no_grad():
            start = time.process_time()
            self.pyramid(self.images)
            self.forward.append(time.process_time() - start)
        start = time.process_time()
        sum(x.square().mean() for x in self.pyramid(self.images)).backward()
        self.training.append(time.process_time() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, nargs=2, default=(800, 1344))
    parser.add_argument("--time", type=int, nargs=2, default=(256, 320))
    parser.add_argument("--backbones", nargs="+", default=["pvt_tiny", "pvt_small"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out")
    given = parser.parse_args()
    counted, timed = [], []
    for backbone in given.backbones:
        for detector in ("retinanet", "maskrcnn"):
            for arm, (norm, options) in arms().items():
                row = {"detector": detector, "backbone": backbone, "arm": arm, "norm": norm}
                counted.append({**row, "gmacs": gmacs(detector, backbone, norm, options, given.size)})
                parts = ", ".join(f"{part} {value:.1f}" for part, value in counted[-1]["gmacs"].items())
                print(f"{detector} {backbone} {arm}: {parts} GMACs")
    if given.rounds:
        backbone = given.backbones[0]
        runners = {arm: Arm(backbone, norm, options, given.time) for arm, (norm, options) in arms().items()}
        for _ in range(given.rounds + 1):  # the first one warms up
            for runner in runners.values():
                runner.measure()
        first = next(iter(runners.values()))
        for arm, runner in runners.items():
            row = {"backbone": backbone, "arm": arm}
            for kind in ("forward", "training"):
                own, base = getattr(runner, kind)[1:], getattr(first, kind)[1:]
                row[kind] = statistics.median(own)
                row[f"{kind}_ratio"] = statistics.median(a / b for a, b in zip(own, base, strict=True))
            timed.append(row)
            print(
                f"{backbone} {arm}: "
                + ", ".join(f"{key} {value:.3f}" for key, value in row.items() if value not in (backbone, arm))
            )
    if given.out:
        about = {"machine": describe_machine(), "size": given.size, "time_size": given.time, "rounds": given.rounds}
        write_json(given.out, {**about, "gmacs": counted, "cpu_seconds": timed})


if __name__ == "__main__":
    main()
