"""README.md of a model repository: metadata for the hub, then what the model is, its results and how to load it.

Every number comes from the run's files; a model without a run gets a card without results.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .model_files import ModelCard


def card_text(
    card: "ModelCard", norm: str | None, parameters: int, results: Mapping[str, Any] | None, license: str | None
) -> str:
    """The whole file. `norm` is named beside the architecture; `results` is the run's final evaluation."""
    name = card.model["name"]
    title = f"{name} with {norm}" if norm else name
    tags = ["dynavit", "vision-transformer", *([norm] if norm else [])]
    lines = ["---", *_metadata(card, title, tags, results, license), "---", "", f"# {title}", ""]
    trained = f", trained for {card.task.replace('_', ' ')} on {card.data['name']}" if card.data.get("name") else ""
    lines += [f"A model of the library dynavit{trained}. {parameters:,} parameters.", ""]
    if card.classes:
        shown = ", ".join(card.classes[:20]) + (", …" if len(card.classes) > 20 else "")
        lines += [f"Classes ({len(card.classes)}): {shown}.", ""]
    if rows := _rows(results):
        split, samples = (results or {})["split"], (results or {}).get("samples")
        where = f"the {split} split" + (f", {samples:,} samples" if samples else "")
        lines += ["## Results", "", f"On {where}, by `dynavit eval`:", "", "| | |", "|---|---|"]
        lines += [f"| {label} | {text} |" for label, text, _ in rows] + [""]
    lines += [
        "## How to load it",
        "",
        "```python",
        "import dynavit",
        "",
        'model = dynavit.load("this folder or its hub id")',
        "```",
        "",
    ]
    if card.guests:
        files = ", ".join(sorted({guest["file"] for guest in card.guests}))
        lines += [f"It needs plug-ins: call `dynavit.load_plugin` for each of {files} first.", ""]
    chosen = f"The weights are licensed under {license}." if license else "No licence was chosen for the weights."
    lines += ["## Licence", "", chosen, ""]
    return "\n".join(lines)


def _metadata(
    card: "ModelCard", title: str, tags: list[str], results: Mapping[str, Any] | None, license: str | None
) -> list[str]:
    """YAML that the hub reads. Texts are written as JSON, which YAML contains."""
    task = "image-classification" if card.preprocess and _classifies(card.task) else None
    lines = ["library_name: dynavit", f"tags: {json.dumps(tags)}"]
    lines += [f"license: {json.dumps(license)}"] if license else []
    lines += [f"pipeline_tag: {task}"] if task else []
    if task and (rows := _rows(results)):
        lines += ["model-index:", f"- name: {json.dumps(title)}", "  results:", "  - task:", f"      type: {task}"]
        lines += ["    dataset:", f"      name: {json.dumps(card.data.get('name', 'unknown'))}", "      type: custom"]
        lines += [f"      split: {json.dumps((results or {})['split'])}", "    metrics:"]
        for label, _, (metric, value) in rows:
            lines += [f"    - type: {json.dumps(metric)}", f"      name: {json.dumps(label)}", f"      value: {value}"]
    return lines


def _classifies(task: str) -> bool:
    from ..tasks.classification import Classification
    from ..tasks.table import TASKS

    return task in TASKS and issubclass(TASKS[task], Classification)


def _rows(results: Mapping[str, Any] | None) -> list[tuple[str, str, tuple[str, float]]]:
    """(label, text, (name, value)) of the metrics that the task names."""
    from ..analysis.report.read import Run

    if results is None:
        return []
    there = [metric for metric in Run.metrics_of(results) if isinstance(results.get(metric.name), int | float)]
    return [(metric.label, metric.text(results[metric.name]), (metric.name, results[metric.name])) for metric in there]
