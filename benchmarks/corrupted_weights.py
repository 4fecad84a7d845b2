"""mCE of pre-trained DeiT-Ti on corrupted ImageNet images, against AlexNet's published errors, with its standard error.

    python benchmarks/corrupted_weights.py --weights deit_tiny_patch16_224.safetensors --images imagenet-val-1k --out FILE

`--images` is a folder with one folder for each class, named by its number; its images are 224 x 224 crops already. `--count`
of them are taken, evenly. FILE is written after every severity, and the same command goes on where it was stopped.

The sum of errors over severities and corruptions is one over images too, so mCE is the mean of one number for each image, and
its standard error follows from resampling images (bootstrap).
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from dynavit.analysis.measures.corruption_error import ALEXNET
from dynavit.bench.machine import describe_machine
from dynavit.common.files import read_json, write_json
from dynavit.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from dynavit.data.folder import images_by_class
from dynavit.data.memory import normalise
from dynavit.data.read_image import read_image
from dynavit.models import create_model
from dynavit.runs.initial import initial_weights

NAME = "deit_tiny_patch16_224"
PUBLISHED = {"mce": 71.1, "clean error": 0.278}  # Mao et al., Towards Robust Vision Transformer, arXiv 2105.07926; DeiT's own
BATCH = 50
RESAMPLED = 10_000


def read_images(folder, count):
    """Bytes (n, 3, 224, 224), labels, and the numbers of the images in the folder."""
    files = [(path, int(name)) for name, paths in images_by_class(folder).items() for path in paths]
    numbers = torch.linspace(0, len(files) - 1, count).round().long()
    chosen = [files[number] for number in numbers]
    pixels = [torch.from_numpy(np.array(read_image(path).convert("RGB"))).permute(2, 0, 1) for path, _ in chosen]
    return torch.stack(pixels), torch.tensor([label for _, label in chosen]), numbers


@torch.no_grad()
def wrong_answers(model, images, labels):
    mean, std = (torch.tensor(model.pretrained_cfg[name]) for name in ("mean", "std"))
    answers = [model(normalise(batch, mean, std)).argmax(-1) for batch in images.split(BATCH)]
    return torch.cat(answers) != labels


def as_text(wrong):
    return np.packbits(wrong.numpy()).tobytes().hex()


def from_text(text, count):
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8))[:count].astype(float)


def summarised(wrong, count):
    """{name: wrong answers at each severity as text} -> errors, CE and mCE with standard errors."""
    chosen = np.random.default_rng(0).integers(0, count, (RESAMPLED, count))
    clean = from_text(wrong["clean"][0], count)
    result = {"clean error": with_error(clean, chosen), "corruptions": {}}
    parts = []  # for each corruption: what each image adds to CE
    for name in (name for name in CORRUPTIONS if len(wrong.get(name, ())) == len(SEVERITIES)):
        by_severity = np.stack([from_text(text, count) for text in wrong[name]])
        parts.append(100 * by_severity.sum(0) / sum(ALEXNET[name]))
        result["corruptions"][name] = {"errors": by_severity.mean(1).tolist(), "ce": with_error(parts[-1], chosen)}
    if len(parts) == len(CORRUPTIONS):
        result["mce"] = with_error(np.mean(parts, 0), chosen)
        result["published"] = PUBLISHED
        result["(mce - published) / standard error"] = (result["mce"][0] - PUBLISHED["mce"]) / result["mce"][1]
    return result


def with_error(values, chosen):
    """The mean over images, and its standard error by resampling them."""
    return [float(values.mean()), float(values[chosen].mean(1).std(ddof=1))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--weights", "--images", "--out"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--table", choices=["large", "extra"], default="large")
    given = parser.parse_args()
    torch.set_num_threads(1)
    images, labels, numbers = read_images(given.images, given.count)
    model = create_model(NAME).eval()
    initial_weights(model, str(given.weights))
    about = {"model": NAME, "images": given.count, "table": given.table, "seed": 0}
    stored = read_json(given.out) if given.out.is_file() else about | {"wrong": {}, "cpu_seconds": 0.0}
    if {name: stored[name] for name in about} != about:
        raise SystemExit(f"{given.out} holds other results, of {stored['images']} images; name another file")
    wrong, began = stored["wrong"], time.process_time() - stored["cpu_seconds"]
    options = "".join(
        f" --{name} {vars(given)[name]}" for name in ("count", "table") if vars(given)[name] != parser.get_default(name)
    )
    command = f"python benchmarks/corrupted_weights.py --weights WEIGHTS --images IMAGES{options} --out FILE"
    head = {"command": command, "machine": describe_machine(), "quiet": False}
    for name in ("clean", *CORRUPTIONS):
        for severity in (0,) if name == "clean" else SEVERITIES[len(wrong.get(name, ())) :]:
            if name in wrong and severity == 0:
                continue
            seen = corrupt(images, name, severity, index=numbers, table=given.table) if severity else images
            wrong.setdefault(name, []).append(as_text(wrong_answers(model, seen, labels)))
            spent = {"cpu_seconds": round(time.process_time() - began, 1)}
            write_json(given.out, head | about | spent | summarised(wrong, given.count) | {"wrong": wrong})
        print(name, *(f"{from_text(text, given.count).mean():.3f}" for text in wrong[name]), flush=True)
    found = summarised(wrong, given.count)
    print("clean error", *found["clean error"], "mCE", *found["mce"])


if __name__ == "__main__":
    main()
