"""Do the protocols for frozen features judge real features as they should? DeiT-Ti, trained on ImageNet, on Imagenette.

    python benchmarks/frozen_features.py --weights deit_tiny_patch16_224.safetensors --images imagenette-mini --out FILE

k-NN and the cached linear probe of its features must lie far above those of the same network with random weights, and above
those of pixels. k-NN is computed once more by plain loops, from features that timm's own model gives through timm's transform.
`--images` has a folder `train` and a folder `val`, each with a folder for each class.
"""

import argparse
import math
from pathlib import Path

import torch

from dynavit.bench.machine import describe_machine
from dynavit.common.files import write_json
from dynavit.common.torchvision_shim import ensure_torchvision
from dynavit.runs.probe import probe_run

ensure_torchvision()

NAME = "deit_tiny_patch16_224"
K, TEMPERATURE = 20, 0.07


@torch.no_grad()
def plain_features(weights, folder):
    """Class tokens after the last norm, and labels, by timm alone."""
    import timm
    from PIL import Image
    from safetensors.torch import load_file
    from timm.data import create_transform, resolve_data_config

    model = timm.create_model(NAME).eval()
    model.load_state_dict(load_file(weights))
    transform = create_transform(**resolve_data_config({}, model=model))
    features, labels = [], []
    for label, each in enumerate(sorted(path for path in folder.iterdir() if path.is_dir())):
        files = sorted(each.iterdir())
        for start in range(0, len(files), 32):
            images = torch.stack([transform(Image.open(file).convert("RGB")) for file in files[start : start + 32]])
            features.append(model.forward_features(images)[:, 0])
            labels += [label] * len(images)
    return torch.cat(features).double(), labels


def plain_neighbours(bank, known, asked, labels):
    """The share of right answers, one image and one neighbour at a time."""
    bank, right = [row / row.norm() for row in bank], 0
    for row, label in zip(asked, labels, strict=True):
        row = row / row.norm()
        similar = sorted(((float(row @ other), number) for number, other in enumerate(bank)), reverse=True)[:K]
        votes = {}
        for cosine, number in similar:
            votes[known[number]] = votes.get(known[number], 0.0) + math.exp(cosine / TEMPERATURE)
        right += max(sorted(votes), key=votes.get) == label
    return right / len(labels)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--weights", "--images", "--out"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--protocols", default="knn,linear_cached")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = probe_run(
        str(given.weights), given.protocols.split(","), model=NAME, data="folder", data_dir=given.images, batch_size=50
    )
    result = {"machine": describe_machine(), "model": NAME, "data": given.images.name, "protocols": found}
    bank, known = plain_features(given.weights, given.images / "train")
    asked, labels = plain_features(given.weights, given.images / "val")
    result["knn by plain loops, timm's features"] = plain_neighbours(bank, known, asked, labels)
    write_json(given.out, result)
    for name, each in found.items():
        print(name, {who: round(each[who]["top1"], 4) for who in ("model", "random", "pixels")}, each["verdict"])
    print("k-NN by plain loops:", result["knn by plain loops, timm's features"])


if __name__ == "__main__":
    main()
