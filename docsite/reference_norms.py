"""A page for every norm: formula and paper from its docstring, options from its signature, cost from the newest measurement,
and a picture of its effect on the magnitudes of tokens."""

import inspect
import json
from pathlib import Path
from typing import Any

import torch
from docstring_parser import parse
from documents_as_pages import ROOT
from math_in_pages import with_mathml

from dynavit.norms.factory import NORMS, create_norm

GRID, HEADS, CHANNELS = 14, 4, 16
FACTS = {
    "mixes_tokens": "looks at other tokens",
    "needs_grid": "uses positions on the grid",
    "uses_heads": "works head by head",
    "starts_as": "can start as",
}


def norm_pages(pictures: Path) -> dict[str, str]:
    """File name to text; pictures are written beside them."""
    costs, source = newest_costs()
    pages = {}
    rows = ["# Norms", "", "| name | | step with backward / LayerNorm, shape A |", "|---|---|---|"]
    for name in sorted(NORMS.names()):
        kind = NORMS[name]
        summary = (inspect.getdoc(kind) or "").partition("\n")[0]
        cost = ", ".join(f"{label}{ratio:.1f}×" for label, ratio in costs.get(name, {}).items()) or "not measured"
        rows.append(f"| [{name}]({name}.md) | {summary} | {cost} |")
        draw_effect(name, pictures / f"{name}.svg")
        pages[f"reference/norms/{name}.md"] = norm_page(name, kind, cost, source)
    pages["reference/norms/index.md"] = "\n".join(
        [*rows, "", f"Costs: `{source}`. Lower is better; LayerNorm is `nn.LayerNorm`.", ""]
    )
    return pages


def norm_page(name: str, kind: Any, cost: str, source: str) -> str:
    text = (inspect.getdoc(kind) or "").partition("\nArgs:")[0].strip()
    about = {each.arg_name: " ".join((each.description or "").split()) for each in parse(inspect.getdoc(kind) or "").params}
    facts = [f"{words}: {value}" if isinstance(value := getattr(kind, fact, None), str) else words
             for fact, words in FACTS.items() if getattr(kind, fact, None)]  # fmt: skip
    options = [
        f"| `{option.name}` | `{option.default!r}` | {about.get(option.name, '')} |"
        for option in inspect.signature(kind.__init__).parameters.values()
        if option.kind is option.KEYWORD_ONLY
    ]
    lines = [f"# {name}", "", with_mathml(text), ""]
    lines += [f"It {', '.join(facts)}." if facts else "It looks at nothing but the token itself.", ""]
    lines += [f"Cost of forward and backward beside LayerNorm, shape A: {cost} (`{source}`).", ""]
    lines += [f"![Magnitudes of {GRID}×{GRID} tokens before and after {name}]({name}.svg)", ""]
    if options:
        lines += ["## Options of its own", "", "| option | default | |", "|---|---|---|", *options, ""]
    lines += ["## Use", "", "```python", "import dynavit", "", f'norm = dynavit.create_norm("{name}", 432, heads=9)', "```", ""]
    lines += [
        f"::: {kind.__module__}.{kind.__name__}\n    options:\n      members: []\n      show_docstring_description: false\n"
    ]
    return "\n".join(lines)


def newest_costs() -> tuple[dict[str, dict[str, float]], str]:
    """Norm to {variant: ratio to LayerNorm of forward and backward at shape A}, and the file it comes from."""
    file = sorted((ROOT / "benchmarks" / "results").glob("*-norms-*-2cores.json"))[-1]
    costs: dict[str, dict[str, float]] = {}
    for row in json.loads(file.read_text())["rows"]:
        if row["shape"] == "A":
            name, _, variant = row["norm"].partition(" ")
            costs.setdefault(name, {})[f"{variant} " if variant else ""] = row["training_ratio"][0]
    return costs, file.relative_to(ROOT).as_posix()


def draw_effect(name: str, file: Path) -> None:
    """Magnitudes of tokens with a bright corner and a channel that is off, before and after the norm, in its first step."""
    from matplotlib.figure import Figure

    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(2, GRID * GRID, CHANNELS, generator=generator)
    bright = torch.ones(GRID, GRID)
    bright[: GRID // 2, : GRID // 2] = 3
    tokens = tokens * bright.flatten()[None, :, None] + 2 * (torch.arange(CHANNELS) == 3)
    with torch.no_grad():
        after = create_norm(name, CHANNELS, heads=HEADS)(tokens, grid=(GRID, GRID))
    figure = Figure(figsize=(5.2, 2.4), layout="constrained")
    for place, (title, values) in enumerate({"before": tokens, f"after {name}": after}.items()):
        axes = figure.add_subplot(1, 2, place + 1)
        picture = axes.imshow(values[0].norm(dim=-1).reshape(GRID, GRID).numpy(), cmap="viridis")
        axes.set(title=title, xticks=[], yticks=[])
        figure.colorbar(picture, ax=axes, shrink=0.8)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, facecolor="white")
