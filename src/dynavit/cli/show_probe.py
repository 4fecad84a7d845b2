"""Judgements of frozen features as tables: `dynavit eval --protocol`."""

from pathlib import Path
from typing import Any

from .show import print_table


def print_probe(run: Path, result: dict[str, Any]) -> None:
    names = {"model": f"features ({result['features']})", "random": "the same, random network", "pixels": "pixels"}
    rows = [[label, f"{result[name]['top1']:.2%}", f"{result[name]['top5']:.2%}"] for name, label in names.items()]
    for k, by_k in result["model"].get("by_k", {}).items():
        if k != str(result["neighbours"]):
            rows.append([f"features, k = {k}", f"{by_k['top1']:.2%}", f"{by_k['top5']:.2%}"])
    if "best_epoch_selected_on_test" in result:
        rows.append(["best epoch, selected on test", f"{result['best_epoch_selected_on_test']:.2%}", "–"])
    head = f"k-NN, k = {result['neighbours']}" if result["protocol"] == "knn" else result["protocol"]
    print_table(
        f"{run} ({result['checkpoint']}, {result['weights']} weights), {head}: {result['split']} of {result['data']}, "
        f"{result['images']} images, {result['train_images']} to learn from",
        ["by", "top-1", "top-5"],
        rows,
    )
    print(result["verdict"])
    if result.get("file") is not None:
        print(f"written to {result['file']}")
