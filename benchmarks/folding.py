"""How exact folding is, and what it saves.

    python benchmarks/folding.py errors [--out FILE]     every foldable norm on ViT-S/16, PVT-Tiny and Swin-T, at 224 pixels
    python benchmarks/folding.py latency [--out FILE]    ViT-S/16 with LayerNorm, with a foldable norm, and folded

Weights are random, affine parameters are drawn log-normal around 1 and statistics are those of random images: an error does not
need a trained model, and neither does time. `latency` times all contestants in turn, so ratios are of one run; the four ways to
run a model (eager, compiled, onnxruntime, int8 in onnxruntime) are timed one after the other.
"""

import argparse
import tempfile
from pathlib import Path

import torch

import dynavit
from dynavit.bench.machine import describe_machine
from dynavit.bench.timing import time_interleaved
from dynavit.common.files import write_json
from dynavit.deploy.bundle.runner import OnnxPart
from dynavit.deploy.export.quantise import quantise_onnx
from dynavit.deploy.export.write_onnx import write_onnx

NORMS = ["bn", "un", "zscore", "minmax", "repbn", "prepbn", "ldfn"]
MODELS = {"ViT-S/16": "vit_small_patch16_224", "PVT-Tiny": "pvt_tiny", "Swin-T": "swin_tiny_patch4_window7_224"}
REPEATS = {1: 20, 8: 8}


def trained_alike(name, norm):
    """An evaluation model whose norms are no longer as they were made."""
    torch.manual_seed(0)
    model = dynavit.create_model(name, norm=norm, num_classes=1000)
    for module in model.modules():
        if hasattr(module, "set_progress"):
            module.set_progress(1, 1)  # annealing has ended
        if hasattr(module, "affine_map"):
            module.weight.data.copy_(torch.exp(0.3 * torch.randn_like(module.weight)))
            module.bias.data.normal_(0, 0.1)
    if norm != "ln":
        dynavit.recalibrate(model, [torch.randn(4, 3, 224, 224) for _ in range(2)])
    return model.eval()


def errors():
    rows = []
    for title, name in MODELS.items():
        for norm in NORMS:
            report = dynavit.fold(trained_alike(name, norm)).fold_report
            row = {"model": title, "norm": norm, "folded": report.count("folded"), "left": report.count("left")}
            rows.append(row | {"error": report.error, "unfolded": report.own_error, "limit": report.limit})
            print(
                f"{title:9s} {norm:7s} {row['folded']:3d} folded {row['left']:2d} left   "
                f"error {report.error:.1e}, unfolded {report.own_error:.1e}",
                flush=True,
            )
    return rows


def latency(norm="un"):
    name = MODELS["ViT-S/16"]
    unfolded = trained_alike(name, norm)
    models = {"LayerNorm": trained_alike(name, "ln"), f"{norm}, unfolded": unfolded, f"{norm}, folded": dynavit.fold(unfolded)}
    rows = []
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        files = {}
        for at, (title, model) in enumerate(models.items()):
            files[title] = Path(folder) / f"{at}.onnx"
            write_onnx(model, [torch.randn(2, 3, 224, 224)], files[title], input_names=["images"], output_names=["logits"])
            quantise_onnx(files[title], Path(folder) / f"{at}.int8.onnx")
        for batch, repeats in REPEATS.items():
            images = torch.randn(batch, 3, 224, 224)
            compiled = {title: torch.compile(model, dynamic=False) for title, model in models.items()}
            plain = {title: OnnxPart(file) for title, file in files.items()}
            small = {title: OnnxPart(file.with_suffix(".int8.onnx")) for title, file in files.items()}
            for way, runners in (("eager", models), ("compiled", compiled), ("onnxruntime", plain), ("int8", small)):
                given = images if way in ("eager", "compiled") else images.numpy()
                calls = {title: lambda run=run, given=given: run(given) for title, run in runners.items()}
                found = time_interleaved(calls, repeats=repeats, inner=1, warmup=3)
                base = found["LayerNorm"]
                for title, timing in found.items():
                    middle, low, high = timing.ratio(base)
                    row = {"batch": batch, "way": way, "model": title, "milliseconds": 1e3 * timing.median}
                    rows.append(row | {"ratio to LayerNorm": middle, "quartiles": [low, high]})
                    print(
                        f"{batch} {way:12s} {title:14s} {1e3 * timing.median:7.1f} ms   {middle:.3f} ({low:.3f}-{high:.3f})",
                        flush=True,
                    )
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["errors", "latency"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = {"errors": errors, "latency": latency}[options.what]()
    if options.out is not None:
        write_json(options.out, {"machine": describe_machine(), "command": f"folding.py {options.what}", "rows": rows})
