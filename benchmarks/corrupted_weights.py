"""mCE of pre-trained DeiT-Ti on corrupted ImageNet images, against AlexNet's published errors, with its standard error.

    python benchmarks/corrupted_weights.py --weights deit_tiny_patch16_224.safetensors --images imagenet-val-1k --out FILE

`--images` is a folder with one folder for each class, named by its number; its images are 224 x 224 crops already. `--count`
of them are taken, evenly, in parts of 50, each of which is spread over the classes. FILE is written after every severity, and
the same command goes on where it was stopped; its results are of the parts that are done.

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
RESAMPLED = 5_000


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


def summarised(parts):
    """[{name: wrong answers at each severity as text} of each part] -> errors, CE and mCE with standard errors."""
    done = [part for part in parts if all(len(part.get(name, ())) == len(SEVERITIES) for name in CORRUPTIONS)]
    if not done:
        return {"images done": 0}
    wrong = {
        name: np.stack(
            [np.concatenate([from_text(part[name][at], BATCH) for part in done]) for at in range(len(done[0][name]))]
        )
        for name in done[0]
    }
    count = BATCH * len(done)
    chosen = np.random.default_rng(0).integers(0, count, (RESAMPLED, count))
    adds = {name: 100 * wrong[name].sum(0) / sum(ALEXNET[name]) for name in CORRUPTIONS}  # what each image adds to CE
    mce = with_error(np.mean(list(adds.values()), 0), chosen)
    return {
        "images done": count,
        "clean error": with_error(wrong["clean"][0], chosen),
        "mce": mce,
        "published": PUBLISHED,
        "(mce - published) / standard error": (mce[0] - PUBLISHED["mce"]) / mce[1],
        "corruptions": {
            name: {"errors": wrong[name].mean(1).tolist(), "ce": with_error(adds[name], chosen)} for name in CORRUPTIONS
        },
    }


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
    if given.count % BATCH:
        parser.error(f"--count is a multiple of {BATCH}, the images of a part")
    torch.set_num_threads(1)
    images, labels, numbers = read_images(given.images, given.count)
    model = create_model(NAME).eval()
    initial_weights(model, str(given.weights))
    about = {"model": NAME, "images": given.count, "table": given.table, "seed": 0}
    stored = read_json(given.out) if given.out.is_file() else about | {"wrong": [], "cpu_seconds": 0.0}
    if {name: stored[name] for name in about} != about:
        raise SystemExit(f"{given.out} holds other results, of {stored['images']} images; name another file")
    parts, began = stored["wrong"], time.process_time() - stored["cpu_seconds"]
    options = "".join(
        f" --{name} {vars(given)[name]}" for name in ("count", "table") if vars(given)[name] != parser.get_default(name)
    )
    command = f"python benchmarks/corrupted_weights.py --weights WEIGHTS --images IMAGES{options} --out FILE"
    head = {"command": command, "machine": describe_machine(), "quiet": False}
    spent = {"cpu_seconds": stored["cpu_seconds"]}
    strides, summary = given.count // BATCH, summarised(parts)
    for at in range(strides):
        mine = slice(at, None, strides)
        if at == len(parts):
            parts.append({})
        for name in ("clean", *CORRUPTIONS):
            wrong = parts[at].setdefault(name, [])
            for severity in ((0,) if name == "clean" else SEVERITIES)[len(wrong) :]:
                seen = images[mine]
                if severity:
                    seen = corrupt(seen, name, severity, index=numbers[mine], table=given.table)
                wrong.append(as_text(wrong_answers(model, seen, labels[mine])))
                spent = {"cpu_seconds": round(time.process_time() - began, 1)}
                write_json(given.out, head | about | spent | summary | {"wrong": parts})
        summary = summarised(parts)
        write_json(given.out, head | about | spent | summary | {"wrong": parts})
        print(*(f"{name}: {summary[name]}" for name in ("images done", "clean error", "mce")), flush=True)


if __name__ == "__main__":
    main()
