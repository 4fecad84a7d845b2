"""Run and comparison directories with invented numbers, in the format that training and comparing write."""

import base64
import json
import math
import random
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from dynavit.common.metric import Metric

CLASSES = [str(digit) for digit in range(10)]
# A guest's task whose main metric is smaller for better models.
ANGLE = Metric("angle", "angle error, degrees", "smaller", digits=1)
HITS = Metric("hits", "within 5°", percent=True)


def make_run(
    directory: Path,
    *,
    norm: str = "ln",
    seed: int = 0,
    top1: float = 0.97,
    epochs: int = 8,
    finished: bool = True,
    layers: int = 2,
    heads: int = 3,
    classes: list[str] = CLASSES,
    notes: tuple[str, ...] = (),
    exits: int = 0,
    metrics: Sequence[Metric] | None = None,
    split: str = "test",
) -> Path:
    """One run; `norm="dtn"` also logs λ. Unfinished: it stopped half-way and was never evaluated. With `exits` it is a
    cascade whose thresholds were found.

    `metrics`: those of a guest's task, of which the first is the main one and has the value `top1`; [] for a task without
    any. None: a classification from before metrics were stored."""
    directory.mkdir(parents=True)
    main = "top1" if metrics is None else metrics[0].name if metrics else None
    worse = -0.5 if metrics is None or not metrics or metrics[0].better == "larger" else 0.5
    draw = random.Random(f"{norm} {seed}")
    config = {
        "model": "vit_tiny_star",
        "norm": norm,
        "data": "digits",
        "epochs": epochs,
        "batch_size": 128,
        "lr": 1e-3,
        "seed": seed,
    }
    config |= {"optim": {"weight_decay": 0.05, "betas": [0.9, 0.999]}, "data_dir": None}
    config |= {} if metrics is None else {"task": "rotation"}
    (directory / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (directory / "env.json").write_text(json.dumps({"torch": "2.13.0", "device": "cpu", "commit": None, "seed": seed}))
    lines: list[dict] = [{"kind": "note", "text": text} for text in notes]
    for epoch in range(1, (epochs if finished else epochs // 2) + 1):
        rest = math.exp(-4 * epoch / epochs) + 0.02 * draw.random()
        where = {"step": 10 * epoch, "epoch": float(epoch)}
        time = {"seconds": 1.0, "images_per_second": 1000.0}
        lines.append({"kind": "train", **where, "loss": 2.3 * rest + 0.05, "lr": 1e-3, "grad_norm": 1.0, "time": time})
        lines.append(
            {
                "kind": "eval",
                "split": "val",
                "weights": "model",
                **where,
                "loss": 2.3 * rest,
                **({main: top1 + worse * rest} if main else {}),
                "by_quadrant": [1.0, 2.0],
            }
        )
        if norm == "dtn":
            lines.append({"kind": "scalars", **where, "values": lambdas(layers, heads, epoch / epochs)})
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        (directory / "eval").mkdir()
        found = evaluation(top1, classes) if metrics is None else evaluation_of(metrics, top1)
        (directory / f"eval/{split}.json").write_text(json.dumps(found | {"split": split}))
    if exits:
        (directory / "analysis").mkdir()
        (directory / "analysis/calibration.json").write_text(json.dumps(calibration(exits, top1, classes)))
    return directory


def lambdas(layers: int, heads: int, progress: float) -> dict[str, dict[str, list[float]]]:
    return {
        f"blocks.{layer}.norm{number}": {
            "lambda_mean": [0.5 + 0.45 * progress * math.sin(layer + head + number) for head in range(heads)],
            "lambda_var": [0.5 + 0.45 * progress * math.cos(layer - head + number) for head in range(heads)],
        }
        for layer in range(layers)
        for number in (1, 2)
    }


def evaluation(top1: float, classes: list[str], per_class: int = 36) -> dict:
    n = len(classes)
    wrong = [round(per_class * (1 - top1) * (1 + 0.5 * math.sin(c))) for c in range(n)]
    confusion = [[per_class - wrong[c] if c == p else wrong[c] if p == (c + 3) % n else 0 for p in range(n)] for c in range(n)]
    samples = [
        {
            "index": i,
            "image": png(i),
            "target": i % n,
            "prediction": (i + 3) % n if i % 5 == 4 else i % n,
            "confidence": 0.9 - i / 50,
        }
        for i in range(12)
    ]
    return {
        "split": "test",
        "checkpoint": "best",
        "weights": "model",
        "samples": n * per_class,
        "loss": 0.11,
        "top1": top1,
        "top5": 0.998,
        "ece": 0.013,
        "per_class": [1 - w / per_class for w in wrong],
        "confusion": confusion,
        "reliability": [{"samples": n * per_class, "confidence": top1, "accuracy": top1}],
        "throughput": {"images_per_second": 5120.0, "batch_size": 256},
        "classes": classes,
        "samples_shown": samples,
    }


def evaluation_of(metrics: Sequence[Metric], value: float) -> dict[str, Any]:
    """Of a guest's task, as every evaluation is stored now. "by_quadrant" is a detail among the results."""
    about = {
        "split": "test",
        "checkpoint": "best",
        "weights": "model",
        "samples": 360,
        "loss": 0.25,
        "by_quadrant": [9.0, 12.0],
    }
    numbers = dict(zip((metric.name for metric in metrics), (value, 0.875), strict=False))
    stored = [metric.to_dict() for metric in metrics]
    return {**about, **numbers, "metrics": stored, "main_metric": metrics[0].name if metrics else None}


def calibration(exits: int, top1: float, classes: list[str], shown: int = 4) -> dict:
    """Three quarters of the images leave at each exit, but for the last."""
    shares = [0.75 * 0.25**k for k in range(exits - 1)] + [0.25 ** (exits - 1)]
    policy = {
        "thresholds": [0.9 - 0.1 * k for k in range(exits - 1)] + [None],
        "confidence_kind": "max_softmax",
        "gmacs": [0.4 * 3**k for k in range(exits)],
        "milliseconds": [1.7 * 3**k for k in range(exits)],
        "batch_size": 64,
        "accuracy": None,
        "shares": shares,
        "expected_accuracy": top1,
        "found_on": {"data": "digits", "split": "val", "seed": 0, "samples": 144},
        "found_by": "at least 95.00% accuracy",
    }
    curve = [
        {
            "thresholds": [t, *[0.5] * (exits - 2), None],
            "gmacs": 0.4 + t * 0.4 * 3 ** (exits - 1),
            "accuracy": top1 - (1 - t) ** 2 / 9,
        }
        for t in (0, 0.2, 0.4, 0.6, 0.8, 1)
    ]
    gallery = [
        [
            {"index": i, "image": png(i + 7 * k), "target": i % 3, "prediction": (i + (k and i == 3)) % 3, "confidence": 0.9}
            for i in range(shown)
        ]
        for k in range(exits)
    ]
    return {
        "data": "digits",
        "classes": classes,
        "split": "test",
        "policy": policy,
        "samples": 360,
        "accuracy": top1 - 0.001,
        "shares": shares,
        "gmacs": sum(share * cost for share, cost in zip(shares, policy["gmacs"], strict=True)),
        "milliseconds": 3.3,
        "images_per_second": 1e3 / 3.3,
        "anytime": [top1 - 0.01 * (exits - 1 - k) for k in range(exits)],
        "curve": curve,
        "measured": [{**point, "milliseconds": 4.2 * point["gmacs"]} for point in curve[::2]],
        "gallery": gallery,
    }


def png(number: int, side: int = 8) -> str:
    """A grey picture as a data address."""
    rows = b"".join(bytes([0, *(int(127 + 127 * math.sin(number + x * y / 5)) for x in range(side))]) for y in range(side))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()


# Test accuracy of seeds 0, 1, 2.
ACCURACIES = {
    "ln": [0.9639, 0.9611, 0.9667],
    "bn": [0.9528, 0.9472, 0.9556],
    "in": [0.9611, 0.9639, 0.9583],
    "dtn": [0.9722, 0.9694, 0.9778],
}


def make_comparison(
    directory: Path,
    accuracies: dict[str, list[float]] = ACCURACIES,
    unfinished: frozenset[str] = frozenset(),
    **options: Any,
) -> Path:
    """Norms under seeds 0, 1, ...; runs named in `unfinished` ("bn-seed2") stopped half-way. Other options as in `make_run`."""
    directory.mkdir(parents=True, exist_ok=True)
    settings, cost = [], []
    for number, (norm, values) in enumerate(accuracies.items()):
        names = [f"{norm}-seed{seed}" for seed in range(len(values))]
        for seed, (name, top1) in enumerate(zip(names, values, strict=True)):
            notes = ("skipped 1 broken image: cat/17.png",) if seed == 1 else ()
            told = {"finished": name not in unfinished, "notes": notes, **options}
            make_run(directory / name, norm=norm, seed=seed, top1=top1, **told)
        settings.append({"name": norm, "values": {"norm": norm}, "runs": names})
        ratio = 1 + 0.07 * number
        cost.append(
            {
                "name": norm,
                "parameters": 307_946 + 1000 * number,
                "gmacs": 0.0051 + 0.0001 * number,
                "step_ratio": ratio,
                "step_ratio_quartiles": [ratio - 0.02, ratio + 0.03],
                "step_seconds": 0.0123 * ratio,
            }
        )
    text = {
        "title": "Norms on digits",
        "created": "2025-01-02T03:04:05+00:00",
        "command": "dynavit compare --config quickstart.yaml --out runs/quickstart",
        "varied": ["norm"],
        "baseline": {"norm": "ln"},
        "settings": settings,
        "seeds": list(range(max(map(len, accuracies.values())))),
        "machine": {
            "date": "2025-01-02T03:04:05+00:00",
            "processor": "Some CPU (avx2)",
            "cores": 2,
            "threads": 1,
            "torch": "2.13.0",
        },
        "cost": cost,
    }
    (directory / "comparison.json").write_text(json.dumps(text))
    return directory
