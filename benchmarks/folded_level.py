"""Runs of norms that fold, and of LayerNorm: accuracy before and after folding, of both kinds of weights, and as ONNX files.

    python benchmarks/folded_level.py --runs RUNS/ln-seed{0,1,2} RUNS/ldfn-seed{0,1,2} --data-dir DIR --out FILE

Of each run the share of right answers on test: as it is, folded, and folded after its norms' statistics were recomputed on 50
batches (`recalibrate`), with averaged (ema) and with last weights (model); of the folded averaged weights also as ONNX files in
float32 and int8. Then images per second of the first run of each norm on onnxruntime, one thread, all files in turn.
"""

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from dynavit.bench.machine import describe_machine
from dynavit.bench.timing import time_interleaved
from dynavit.common.files import write_json
from dynavit.norms.factory import folds
from dynavit.runs.export import export_run
from dynavit.runs.fold import fold_run
from dynavit.runs.model_files import ModelCard
from dynavit.runs.subject import Subject

BATCHES, BATCH = 50, 100


@torch.no_grad()
def top1(run, data_dir, **which):
    opened = Subject(run=run, data_dir=data_dir, **which).open()
    return share(opened.model, images(opened))


def images(opened):
    return [(batch.inputs, batch.targets) for (batch,) in opened.loader("test", BATCH).epoch()]


def share(model, batches):
    """Of right answers."""
    right = sum((model(inputs).argmax(-1) == targets).sum().item() for inputs, targets in batches)
    return right / sum(len(targets) for _, targets in batches)


def session(file):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    found = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda pixels: torch.from_numpy(found.run(None, {found.get_inputs()[0].name: pixels.numpy()})[0])


def of_run(run, data_dir, folder):
    """{what: share of right answers}, and the ONNX files as functions."""
    norm = ModelCard.read(run).model.get("norm") or "ln"
    found = {}
    for weights in ("ema", "model") if folds(norm) else ("ema",):
        found[weights] = top1(run, data_dir, weights=weights)
        folded, _ = fold_run(run, folder / weights, weights=weights)
        found[f"{weights}, folded"] = top1(folded, data_dir)
        if folds(norm):
            folded, _ = fold_run(run, folder / f"{weights}-again", weights=weights, recalibrate=BATCHES, data_dir=data_dir)
            found[f"{weights}, recalibrated and folded"] = top1(folded, data_dir)
    bundle, _ = export_run(run, out=folder / "onnx", folded=True, int8=True, data_dir=data_dir)
    files = {"float32": session(bundle / "model.onnx"), "int8": session(bundle / "model.int8.onnx")}
    batches = images(Subject(run=run, data_dir=data_dir).open())
    found |= {f"onnx, {kind}": share(file, batches) for kind, file in files.items()}
    return norm, found, files, batches[0][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=Path, nargs="+", required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--quiet", action="store_true", help="nothing else was running on the machine")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows, first, pixels = {}, {}, None
    with tempfile.TemporaryDirectory() as folder:
        for run in given.runs:
            norm, rows[run.name], files, pixels = of_run(run, given.data_dir, Path(folder) / run.name)
            first = {f"{norm}, {kind}": file for kind, file in files.items()} | first
            print(run.name, rows[run.name], flush=True)
        speed = {}
        for batch in (1, 64):
            some = torch.from_numpy(np.ascontiguousarray(pixels[:batch].numpy()))
            ways = {name: partial(file, some) for name, file in first.items()}
            timings = time_interleaved(ways, repeats=25, inner=1, warmup=3, clock=time.process_time)
            speed[f"batch {batch}"] = {name: batch / timing.median for name, timing in timings.items()}
    print(speed)
    about = {"command": "python benchmarks/folded_level.py --runs RUN... --data-dir DIR --out FILE", "quiet": given.quiet}
    clock = "images per second of CPU time, one thread"
    write_json(given.out, about | {"machine": describe_machine(), "top1": rows, "speed": speed, "speed is": clock})


if __name__ == "__main__":
    main()
