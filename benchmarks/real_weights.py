"""Real weights on real images: does each step of the library keep the answers of DeiT-Ti, trained on ImageNet?

    python benchmarks/real_weights.py all --weights deit_tiny_patch16_224.safetensors --images imagenet-val-1k --out FILE
    python benchmarks/real_weights.py speed ... --quiet        images per second; --quiet says that nothing else was running

`--images` is a folder with one folder for each class, named by its number. Its images are 224 x 224 crops already, so they are
prepared without another crop. Each check compares with the model as timm builds it; its results replace earlier ones in FILE.
"""

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch

from dynavit.bench.machine import describe_machine
from dynavit.bench.timing import time_interleaved
from dynavit.common.files import write_json
from dynavit.convert import swap_norms
from dynavit.data.folder import images_by_class
from dynavit.data.preprocess import preprocess
from dynavit.deploy.bundle.runner import OnnxPart
from dynavit.deploy.export.quantise import quantise_onnx
from dynavit.deploy.export.write_model import write_model
from dynavit.deploy.fold.folding import fold
from dynavit.models import create_model
from dynavit.runs.initial import initial_weights

NAME = "deit_tiny_patch16_224"
BATCH = 50
CROP_OF_DATA_SETS = 0.875  # of `dynavit eval` on files


class Subject:
    """The model, its images as tensors and its logits (n, 1000), computed once for all checks."""

    def __init__(self, weights, images):
        self.model = create_model(NAME).eval()
        self.notes = [note.replace(str(weights), weights.name) for note in initial_weights(self.model, str(weights))]
        self.config = self.model.pretrained_cfg
        files = images_by_class(images)
        self.paths = [path for folder in files for path in files[folder]]
        self.labels = torch.tensor([int(folder) for folder in files for _ in files[folder]])
        self.pixels = self.prepared(1.0)
        self.logits = logits_of(self.model, self.pixels)

    def prepared(self, crop):
        about = {"kind": "files", "image_size": [224, 224], "crop_pct": crop, "interpolation": "bicubic"}
        about |= {"mean": list(self.config["mean"]), "std": list(self.config["std"])}
        return torch.stack([preprocess(path, about) for path in self.paths])

    def compared(self, logits):
        """Accuracy of other logits, and how far they are from the model's."""
        answers, before = logits.argmax(-1), self.logits.argmax(-1)
        return {
            "top1": top1(logits, self.labels),
            "largest difference / largest logit": float((logits - self.logits).abs().max() / self.logits.abs().max()),
            "changed answers": int((answers != before).sum()),
        }


@torch.no_grad()
def logits_of(model, pixels):
    return torch.cat([model(batch) for batch in pixels.split(BATCH)])


def top1(logits, labels):
    return float((logits.argmax(-1) == labels).double().mean())


def check_preprocessing(subject):
    """Accuracy through our transforms, and the same images through timm's."""
    from timm.data import create_transform, resolve_data_config

    from dynavit.data.read_image import read_image

    config = resolve_data_config({"crop_pct": 1.0}, model=subject.model)
    transform = create_transform(**config)
    theirs = torch.stack([transform(read_image(path)) for path in subject.paths])
    accuracy = top1(subject.logits, subject.labels)
    return {
        "images": len(subject.labels),
        "notes": subject.notes,
        "top1": accuracy,
        "standard error": (accuracy * (1 - accuracy) / len(subject.labels)) ** 0.5,
        "timm's config": {name: subject.config[name] for name in ("mean", "std", "crop_pct", "interpolation")},
        "largest difference to timm's pixels": float((theirs - subject.pixels).abs().max()),
        "top1 with the crop of data sets of files": {
            "crop_pct": CROP_OF_DATA_SETS,
            "top1": top1(logits_of(subject.model, subject.prepared(CROP_OF_DATA_SETS)), subject.labels),
        },
    }


def check_swap(subject):
    """DTN in place of every LayerNorm of a block, started at LayerNorm; and started near it, for comparison."""
    found = {}
    for start in ("identity", "near"):
        swapped = swap_norms(subject.model, "dtn", start=start).eval()
        counts = {"swapped": len(swapped.swap_plan.swapped()), "of": len(swapped.swap_plan.rows)}
        found[start] = counts | subject.compared(logits_of(swapped, subject.pixels))
    return found


def check_fold(subject):
    """LayerNorm's constants folded into the linears around it."""
    folded = fold(subject.model, example=subject.pixels[:2])
    report = folded.fold_report
    counts = {action: report.count(action) for action in ("folded", "partly", "left")}
    return counts | {"error": report.error} | subject.compared(logits_of(folded, subject.pixels))


def check_export(subject):
    """ONNX of the model and of its folded form, float32 and int8, on onnxruntime."""
    found = {}
    for name, model in (("unfolded", subject.model), ("folded", fold(subject.model, example=subject.pixels[:2]))):
        with tempfile.TemporaryDirectory() as folder:
            models = onnx_models(model, Path(folder))
            for kind, part in models.items():
                logits = [torch.from_numpy(part(batch.numpy())[0]) for batch in subject.pixels.split(BATCH)]
                found[f"{name}, {kind}"] = {"bytes": part.file.stat().st_size} | subject.compared(torch.cat(logits))
    return found


def check_speed(subject):
    """Images per second on onnxruntime and torch, interleaved."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("unfolded", "folded"):
            (Path(folder) / name).mkdir()
        models = {"unfolded": subject.model, "folded": fold(subject.model, example=subject.pixels[:2])}
        calls = {
            f"onnx, {name}, {kind}": part
            for name in models
            for kind, part in onnx_models(models[name], Path(folder) / name).items()
        }
        for batch in (1, 16):
            images = subject.pixels[:batch]
            runs = {name: partial(part, np.ascontiguousarray(images.numpy())) for name, part in calls.items()}
            runs["torch"] = partial(logits_of, subject.model, images)
            times = time_interleaved(runs, repeats=15, inner=1, warmup=1)
            base = times["onnx, unfolded, float32"]
            found[f"batch {batch}"] = {
                name: {"images/s": batch / time.median, "time / onnx float32": time.ratio(base)} for name, time in times.items()
            }
    return found


def onnx_models(model, folder):
    """float32 and int8, written into this folder; `write_model` compares the file with the model in float64."""
    write_model(model, folder, (3, 224, 224), [str(i) for i in range(1000)], format="onnx", policy=None)
    quantise_onnx(folder / "model.onnx", folder / "model.int8.onnx")
    return {"float32": OnnxPart(folder / "model.onnx"), "int8": OnnxPart(folder / "model.int8.onnx")}


CHECKS = {"preprocessing": check_preprocessing, "swap": check_swap, "fold": check_fold, "export": check_export}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("check", choices=["all", *CHECKS, "speed"], help="all: everything but speed")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--quiet", action="store_true", help="nothing else is running: times can be trusted")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    subject = Subject(options.weights, options.images)
    wanted = CHECKS if options.check == "all" else {options.check: {**CHECKS, "speed": check_speed}[options.check]}
    for name, check in wanted.items():
        result = {"check": name, "machine": describe_machine(), "quiet": options.quiet, **check(subject)}
        print(json.dumps(result, indent=2), flush=True)
        if options.out is not None:
            before = json.loads(options.out.read_text()) if options.out.is_file() else {}
            words = [options.check, "--weights WEIGHTS --images IMAGES", *(["--quiet"] if options.quiet else []), "--out FILE"]
            command = " ".join(["python benchmarks/real_weights.py", *words])
            write_json(options.out, before | {"command": command, "model": NAME, name: result})


if __name__ == "__main__":
    main()
