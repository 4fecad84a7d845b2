"""Photographs per second and core that a training reads, decodes and augments (DeiT's recipe, 224 pixels).

    python benchmarks/reading.py DATA... [--images 200] [--repeats 5] [--out result.json]

DATA are image folders or what `dynavit pack` made of them. Beside today's way stands the plain one: every file decoded whole,
timm's own crop. Processor time of one process without workers, both ways in turn, so that other work counts little.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from dynavit.bench.machine import describe_machine
from dynavit.common.data import LoaderOptions
from dynavit.data.config import AugmentConfig, DataConfig
from dynavit.data.crop import RandomResizedCropAndInterpolation
from dynavit.data.open import open_data
from dynavit.data.read_image import read_image

AUGMENT = AugmentConfig(erase=0.25)


def plainly(loader):
    """The same loader without reduced decoding and with timm's own crop."""
    reader = loader.readers.reader
    crop, *others = reader.transform.transforms
    reader.transform.transforms = [RandomResizedCropAndInterpolation(crop.size, interpolation=crop.interpolation), *others]
    if getattr(reader.read, "func", None) is read_image:
        reader.read = read_image
    return loader


def loader_of(path, images):
    config = DataConfig(workers=0, val_fraction=0, limit=images)
    data = open_data("auto", path, config)
    how = LoaderOptions(train=True, batch_size=50, seed=0, augment=AUGMENT, config=config)
    return data.loader("train", how)


def seconds(loader, epoch):
    start, images = time.process_time(), 0
    for step in loader.epoch(epoch):
        images += sum(len(batch.index) for batch in step)
    return (time.process_time() - start) / images


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quiet", action="store_true", help="nothing else was running on the machine")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = {"machine": describe_machine(), "quiet": options.quiet, "repeats": options.repeats, "rows": []}
    print(result["machine"])
    for path in options.data:
        ways = {"plain": plainly(loader_of(path, options.images)), "today": loader_of(path, options.images)}
        rounds = {name: [] for name in ways}
        for epoch in range(options.repeats):
            for name, loader in ways.items():
                rounds[name].append(seconds(loader, epoch))
        rates = {name: 1 / statistics.median(found) for name, found in rounds.items()}
        faster = np.quantile([a / b for a, b in zip(rounds["plain"], rounds["today"], strict=True)], [0.5, 0.25, 0.75])
        result["rows"].append({"data": path.name, "images_per_second": rates, "faster": faster.tolist()})
        print(f"{path.name:20s} plain {rates['plain']:6.0f}/s  today {rates['today']:6.0f}/s  {faster[0]:.2f} times as fast")
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
