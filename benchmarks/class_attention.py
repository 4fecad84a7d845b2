"""Where the class token of a pre-trained model looks on photographs, head by head, and by rollout over all layers.

    python benchmarks/class_attention.py --weights deit_tiny_patch16_224.safetensors --images DIR --out FOLDER

One figure for each photograph, as `dynavit analyze` draws them for runs. `--images` is a folder of image files, or of folders.
"""

import argparse
from pathlib import Path

import torch

from dynavit.analysis.inside.look import look_inside
from dynavit.analysis.report.blocks import Figures
from dynavit.analysis.report.figures.canvas import svg_and_png
from dynavit.analysis.report.inside.attention_maps import attention_maps
from dynavit.common.files import write_bytes
from dynavit.data.picture import data_uri
from dynavit.data.preprocess import preprocess
from dynavit.models import create_model
from dynavit.runs.initial import initial_weights

NAME = "deit_tiny_patch16_224"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--weights", "--images", "--out"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--count", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = create_model(NAME).eval()
    initial_weights(model, str(given.weights))
    config = model.pretrained_cfg
    about = {"kind": "files", "image_size": [224, 224], "crop_pct": 0.9, "interpolation": "bicubic"}
    about |= {"mean": list(config["mean"]), "std": list(config["std"])}
    folders = sorted(path for path in given.images.iterdir() if path.is_dir()) or [given.images]
    files = [sorted(file for file in folder.iterdir() if file.is_file())[0] for folder in folders][: given.count]
    pixels = torch.stack([preprocess(file, about) for file in files])
    found = look_inside(model, [pixels], pixels)["attention_maps"]
    shown = [
        {"image": data_uri(each, config["mean"], config["std"]), "target": file.parent.name}
        for each, file in zip(pixels, files, strict=True)
    ]
    section = attention_maps({"runs": [{"name": NAME, "norm": "ln", **found}], "shown": shown})
    figures = [figure for block in section.blocks if isinstance(block, Figures) for figure in block.figures]
    for number, figure in enumerate(figures):
        name = f"class-attention-{number}"
        _, png = svg_and_png(name, figure)
        write_bytes(given.out / f"{name}.png", png)
    print(f"{len(figures)} figures in {given.out}")


if __name__ == "__main__":
    main()
