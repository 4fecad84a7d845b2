"""The numbers behind figures, invented, in the format that `dynavit analyze` writes."""

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.report.made_up import png

NORMS = ("ln", "in", "dtn")
VARIES = {"ln": 0.02, "in": 0.35, "dtn": 0.25}

Shape = tuple[str, int, int]  # (path of a block, heads, side of the grid)


def vit(depth: int = 6, heads: int = 6, side: int = 8) -> list[Shape]:
    return [(f"blocks.{number}", heads, side) for number in range(depth)]


def pyramid() -> list[Shape]:
    return [(f"stages.{s}.blocks.{b}", heads, side) for s, (heads, side) in enumerate([(1, 8), (2, 4), (5, 2)]) for b in (0, 1)]


def make_inside(
    directory: Path,
    norms: Sequence[str] = NORMS,
    blocks: Sequence[Shape] | None = None,
    shown: int = 2,
    without: Sequence[str] = (),
    exits: int = 3,
) -> Path:
    """`directory`/analysis with the JSON of every kind but those in `without`."""
    blocks = vit() if blocks is None else blocks
    for kind, make in MAKE.items():
        if kind not in without:
            made = {norm: make(norm, blocks, shown, exits) for norm in norms}
            runs = [
                {"name": f"{norm}-seed0", "norm": norm, "source": source(norm)} | made[norm] for norm in norms if made[norm]
            ]
            if not runs:
                continue
            pictures = [{"image": png(number, 16), "target": f"class {number}"} for number in range(shown)]
            about = {"kind": kind, "images": 64, "data": "digits", "split": "test", "shown": pictures}
            write(directory, kind, {**about, "runs": runs})
    return directory


def write(directory: Path, kind: str, found: dict[str, Any]) -> None:
    (directory / "analysis").mkdir(parents=True, exist_ok=True)
    (directory / "analysis" / f"{kind}.json").write_text(json.dumps(found))


def store_index(directory: Path, kinds: Sequence[str]) -> None:
    """The index of an analysis with one small figure of each kind, as `draw_all` writes it."""
    (directory / "analysis").mkdir(exist_ok=True)
    sections = []
    for kind in kinds:
        name = f"{kind}-0"
        figure = {"name": name, "label": kind, "caption": kind, "group": "0", "svg": f"{name}.svg", "png": f"{name}.png"}
        figure |= {"json": f"{kind}.json"}
        sections.append({"kind": kind, "title": kind, "text": kind, "figures": [figure], "tables": [], "samples": []})
        (directory / "analysis" / f"{name}.svg").write_text('<svg viewBox="0 0 1 1"><g/></svg>')
    write(directory, "index", {"created": "2025-01-02T03:04:05", "runs": [], "sources": {}, "sections": sections})


def read(directory: Path, name: str) -> Any:
    return json.loads((directory / "analysis" / f"{name}.json").read_text())


def source(norm: str) -> dict[str, Any]:
    return {"path": f"runs/{norm}-seed0", "checkpoint": "last", "weights": "ema", "step": 90, "model": "vit_tiny"}


def norm_paths(blocks: Sequence[Shape]) -> list[tuple[str, str, int, int]]:
    return [(f"{path}.norm{n}", site, heads, side) for path, heads, side in blocks for n, site in ((1, "attn"), (2, "mlp"))]


def magnitudes(norm: str, blocks: Sequence[Shape], shown: int, exits: int) -> dict[str, Any]:
    varies, draw = VARIES[norm], random.Random(norm)
    layers = [
        {
            "path": path,
            "site": site,
            "heads": heads,
            "grid": [side, side],
            "cv": varies * (1 + 0.3 * math.sin(number)),
            "cv_heads": [varies] * heads,
        }
        for number, (path, site, heads, side) in enumerate(norm_paths(blocks))
    ]
    maps = [
        {
            "path": path,
            "shown": image,
            "grid": [side, side],
            "values": [
                [
                    8 * (1 + varies * (math.sin(x / 2 + image) * math.cos(y / 3 + h) + draw.gauss(0, 0.3)))
                    for y in range(side)
                    for x in range(side)
                ]
                for h in range(heads)
            ],
        }
        for path, _, heads, side in (norm_paths(blocks)[0], norm_paths(blocks)[-2])
        for image in range(shown)
    ]
    return {"layers": layers, "maps": maps}


def attention_distance(norm: str, blocks: Sequence[Shape], shown: int, exits: int) -> dict[str, Any]:
    draw, finest = random.Random(norm), max(side for _, _, side in blocks)
    layers = []
    for depth, (path, heads, side) in enumerate(blocks):
        uniform = 0.52 * side
        low = 0.8 if norm == "ln" else 0.1 + 0.12 * depth
        distance = [uniform * min(1.1, draw.uniform(low, 1.05)) for _ in range(heads)]
        layers.append(
            {
                "path": f"{path}.attn",
                "grid": [side, side],
                "unit": finest / side,
                "distance": distance,
                "uniform": uniform,
                "local": [d < uniform / 2 for d in distance],
            }
        )
    local = [head for layer in layers for head in layer["local"]]
    return {"layers": layers, "local_share": sum(local) / len(local)}


def mean_variation(norm: str, blocks: Sequence[Shape], shown: int, exits: int) -> dict[str, Any]:
    middle = {"ln": 0.99, "in": 1.15, "dtn": 1.0}[norm]
    return {
        "layers": [
            {
                "path": path,
                "site": site,
                "coefficient": middle + 0.1 * math.sin(number),
                "low": middle - 0.15,
                "high": middle + 0.2,
            }
            for number, (path, site, _, _) in enumerate(norm_paths(blocks))
        ]
    }


def lambdas(norm: str, blocks: Sequence[Shape], shown: int, exits: int) -> dict[str, Any]:
    if norm != "dtn":
        return {}
    epochs = list(range(1, 51))

    def paths(turn: float) -> dict[str, list[list[float]]]:
        return {
            path: [[0.5 + 0.45 * (e / 50) ** 0.5 * math.sin(turn + number + h) for h in range(heads)] for e in epochs]
            for number, (path, _, heads, _) in enumerate(norm_paths(blocks))
        }

    return {"mean": {"epochs": epochs, "layers": paths(0)}, "variance": {"epochs": epochs, "layers": paths(2)}}


def weights(side: int, row: float, column: float, width: float) -> list[list[float]]:
    values = [[math.exp(-((r - row) ** 2 + (c - column) ** 2) / width) for c in range(side)] for r in range(side)]
    total = sum(map(sum, values))
    return [[value / total for value in line] for line in values]


def positions(norm: str, blocks: Sequence[Shape], shown: int, exits: int) -> dict[str, Any]:
    if norm != "dtn":
        return {}

    def heads_of(heads: int, side: int, width: float) -> list[list[list[float]]]:
        middle = side // 2
        return [weights(side, middle - 1 + h % 2, middle - 1 + h // 2 % 2, width) for h in range(heads)]

    grids = list(dict.fromkeys((heads, side) for _, heads, side in blocks))
    inits = {
        init: [
            {"grid": [side, side], "token": [(side - 1) // 2, side // 2], "values": heads_of(heads, side, width)}
            for heads, side in grids
        ]
        for init, width in (("local", 0.5), ("trunc_normal", 1e4))
    }
    layers = [
        {
            "path": path,
            "grid": [side, side],
            "token": [(side - 1) // 2, side // 2],
            "before": heads_of(heads, side, 0.5),
            "after": heads_of(heads, side, 0.5 + 2 * number),
        }
        for number, (path, _, heads, side) in enumerate(norm_paths(blocks))
    ]
    side = blocks[0][2]
    return {"token": [(side - 1) // 2, side // 2], "init": "local", "layers": layers, "inits": inits}


def directions(norm: str, blocks: Sequence[Shape], shown: int, exits: int) -> dict[str, Any]:
    draw = random.Random(norm)

    def dots(spread: float) -> list[list[float]]:
        return [[draw.gauss(0.1, spread), draw.gauss(-0.1, spread / 2)] for _ in range(400)]

    return {
        "layers": [
            {
                "path": path,
                "before": dots(0.3),
                "after": dots(0.25 if norm == "ln" else 0.1),
                "explained_before": [0.41, 0.12],
                "explained_after": [0.33, 0.08],
                "spread_before": 0.82,
                "spread_after": 0.61,
            }
            for path, *_ in norm_paths(blocks)[:1]
        ]
    }


def attention_maps(norm: str, blocks: Sequence[Shape], shown: int, exits: int) -> dict[str, Any]:
    path, heads, side = blocks[-1]

    def spot(at: float, width: float) -> list[float]:
        return [value for line in weights(side, side / 2 + math.sin(at), side / 2 + 2 * math.cos(at), width) for value in line]

    return {
        "of": "class token",
        "maps": [
            {"path": f"{path}.attn", "shown": i, "grid": [side, side], "values": [spot(h + i, 3 + 5 * h) for h in range(heads)]}
            for i in range(shown)
        ],
        "rollout": [{"shown": i, "grid": [side, side], "values": spot(i, 20)} for i in range(shown)],
    }


def exits(norm: str, blocks: Sequence[Shape], shown: int, exits: int) -> dict[str, Any]:
    if not exits or norm != "dtn":
        return {}
    bins = [{"samples": 10 * n, "confidence": n / 10, "accuracy": (n / 10) ** 1.3} for n in range(1, 11)]
    return {
        "calibrated": True,
        "thresholds": [0.9] * (exits - 1) + [None],
        "shares": [0.6] + [0.4 / (exits - 1)] * (exits - 1) if exits > 1 else [1.0],
        "accuracy": [0.9 + 0.02 * k for k in range(exits)],
        "reliability": [bins] * exits,
        "gallery": [
            [{"image": png(k + i), "target": "cat", "prediction": "cat" if i else "dog", "confidence": 0.9} for i in range(4)]
            for k in range(exits)
        ],
    }


def dtn_nature(norm: str, blocks: Sequence[Shape], shown: int, exits: int) -> dict[str, Any]:
    if norm != "dtn":
        return {}
    shares = {"ln": 0.5, "in": 0.2, "local": 0.3}
    return {
        "layers": [
            {"path": path, "site": site, "mean": shares, "variance": shares, "became": "LN"}
            for path, site, *_ in norm_paths(blocks)
        ]
    }


def anchors(norm: str, blocks: Sequence[Shape], shown: int, exits: int) -> dict[str, Any]:
    rows = [{"name": name, "things": 9, "far": 0.25, "best": 0.6, "anchors": 3.5} for name in ("all", "small")]
    nothing = {"name": "large", "things": 0, "far": None, "best": None, "anchors": None}
    levels = [{"stride": stride, "anchors": 900, "learn": 2.5} for stride in (8, 16)]
    return {
        "histogram": [0, 1, 2, 3, 4, 5, 4, 3, 2, 1],
        "sizes": [*rows, nothing],
        "levels": levels,
        "thresholds": [0.5, 0.4, 0],
    }


def padding(norm: str, blocks: Sequence[Shape], shown: int, exits: int) -> dict[str, Any]:
    drift = {"none": 0.1, "norm": 0.01, "all": 0.0}
    modes = {mode: {"largest": [size] * 8, "mean": [size / 9] * 8} for mode, size in drift.items()}
    return {"batches": [f"+{64 * at} × +0" for at in range(8)], "own": "norm", "modes": modes}


MAKE = {
    "magnitudes": magnitudes,
    "attention_distance": attention_distance,
    "mean_variation": mean_variation,
    "lambda": lambdas,
    "positions": positions,
    "directions": directions,
    "attention_maps": attention_maps,
    "exits": exits,
    "dtn_nature": dtn_nature,
    "anchors": anchors,
    "padding": padding,
}
