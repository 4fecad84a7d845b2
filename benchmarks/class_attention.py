"""Inside pre-trained DeiT-Ti on photographs: how far its heads look, token magnitudes, and where the class token looks.

    python benchmarks/class_attention.py --weights deit_tiny_patch16_224.safetensors --images DIR --out FOLDER [--results FILE]

The figures of `dynavit analyze`, which wants a run, for weights alone: maps of `--count` photographs, means over `--averaged`.
`--images` is a folder of image files, or of folders, of which one photograph each is taken in turn. `--results` is a JSON file.
"""

import argparse
from itertools import zip_longest
from pathlib import Path

import torch

from dynavit.analysis.inside.look import look_inside
from dynavit.analysis.report.blocks import Figures
from dynavit.analysis.report.figures.canvas import svg_and_png
from dynavit.analysis.report.inside.attention_distance import attention_distance
from dynavit.analysis.report.inside.attention_maps import attention_maps
from dynavit.analysis.report.inside.magnitudes import magnitudes
from dynavit.bench.machine import describe_machine
from dynavit.common.files import write_bytes, write_json
from dynavit.data.picture import data_uri
from dynavit.data.preprocess import preprocess
from dynavit.models import create_model
from dynavit.runs.initial import initial_weights

NAME = "deit_tiny_patch16_224"
BATCH = 16
SECTIONS = {"class-attention": attention_maps, "attention-distance": attention_distance, "magnitudes": magnitudes}
NUMBERS = ("attention_distance", "magnitudes", "mean_variation")  # for --results


def photographs(folder, count):
    """So many files, one of each folder in turn."""
    folders = sorted(path for path in folder.iterdir() if path.is_dir()) or [folder]
    files = [sorted(file for file in each.iterdir() if file.is_file()) for each in folders]
    return [file for row in zip_longest(*files) for file in row if file is not None][:count]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--weights", "--images", "--out"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--averaged", type=int, default=3)
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = create_model(NAME).eval()
    initial_weights(model, str(given.weights))
    config = model.pretrained_cfg
    about = {"kind": "files", "image_size": [224, 224], "crop_pct": 0.9, "interpolation": "bicubic"}
    about |= {"mean": list(config["mean"]), "std": list(config["std"])}
    files = photographs(given.images, max(given.count, given.averaged))
    pixels = torch.stack([preprocess(file, about) for file in files])
    found = look_inside(model, pixels[: given.averaged].split(BATCH), pixels[: given.count])
    shown = [
        {"image": data_uri(each, config["mean"], config["std"]), "target": file.parent.name}
        for each, file in zip(pixels[: given.count], files[: given.count], strict=True)
    ]
    for name, section in SECTIONS.items():
        kind = found["attention_maps" if name == "class-attention" else name.replace("-", "_")]
        blocks = section({"runs": [{"name": NAME, "norm": "ln", **kind}], "shown": shown}).blocks
        figures = [figure for block in blocks if isinstance(block, Figures) for figure in block.figures]
        for number, figure in enumerate(figures):
            svg, png = svg_and_png(f"{name}-{number}", figure)
            write_bytes(given.out / f"{name}-{number}.png", png)
            write_bytes(given.out / f"{name}-{number}.svg", svg.encode())
        print(f"{name}: {len(figures)} figures in {given.out}")
    if given.results is not None:
        command = "python benchmarks/class_attention.py --weights WEIGHTS --images IMAGES --out FOLDER --results FILE"
        numbers = {name: {key: value for key, value in found[name].items() if key != "maps"} for name in NUMBERS}
        head = {"command": f"{command} --averaged {given.averaged}", "machine": describe_machine(), "model": NAME}
        write_json(given.results, head | {"images": given.averaged} | numbers)


if __name__ == "__main__":
    main()
