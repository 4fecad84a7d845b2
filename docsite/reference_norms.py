"""A page for every norm: paper and formula from its docstrings, options from its signature, cost from the newest measurement,
and a picture of its effect on the magnitudes of tokens."""

import inspect
import json
from pathlib import Path
from typing import Any

import torch
from docstring_parser import parse
from documents_as_pages import ROOT
from math_in_pages import with_mathml

from dynavit.bench.norms import SHAPES
from dynavit.norms.contract import Norm
from dynavit.norms.factory import NORMS, create_norm, folds

GRID, HEADS, CHANNELS = 14, 4, 16
FACTS = {
    "mixes_tokens": "looks at other tokens",
    "needs_grid": "uses positions on the grid",
    "uses_heads": "works head by head",
    "starts_as": "can start as",
}
FOLDS = "folds away at evaluation"


def norm_pages(pictures: Path) -> dict[str, str]:
    """File name to text; pictures are written beside them."""
    costs, source = newest_costs()
    pages = {}
    rows = ["# Norms", "", f"| name | | step with backward / LayerNorm, {SHAPES['A']} |", "|---|---|---|"]
    for name in sorted(NORMS.names()):
        kind = NORMS[name]
        summary = (inspect.getdoc(kind) or "").partition("\n")[0]
        measured = [row for row in costs.get(name, []) if row["shape"] == "A"]
        cost = ", ".join(f"{row['training_ratio'][0]:.1f}×{_variant(row)}" for row in measured) or "not measured"
        rows.append(f"| [{name}]({name}.md) | {summary} | {cost} |")
        draw_effect(name, pictures / f"{name}.svg")
        pages[f"reference/norms/{name}.md"] = norm_page(name, kind, costs.get(name, []), source)
    rows += ["", f"Less is better. LayerNorm is torch's own. From `{source}`; [more about costs](../../norms/cost.md).", ""]
    return pages | {"reference/norms/index.md": "\n".join(rows)}


def norm_page(name: str, kind: type[Norm], costs: list[dict[str, Any]], source: str) -> str:
    text = (inspect.getdoc(kind) or "").partition("\nArgs:")[0].strip()
    lines = [f"# {name}", "", paper_of(kind), "", with_mathml(text), "", facts_of(name, kind), ""]
    lines += [f"![Magnitudes of {GRID}×{GRID} tokens before and after {name}]({name}.svg)", ""]
    lines += ["Lengths of made-up tokens before and after its first step. A corner is brighter, a channel is off.", ""]
    lines += ["## Options", "", *option_table(kind), "## Cost", "", *cost_table(costs, source)]
    lines += ["## Use", "", "```python", "import dynavit", "", f'norm = dynavit.create_norm("{name}", 432, heads=9)', "```", ""]
    lines += [
        f"::: {kind.__module__}.{kind.__name__}\n    options:\n      members: []\n      show_docstring_description: false\n"
    ]
    return "\n".join(lines)


def paper_of(kind: type[Norm]) -> str:
    """The first paragraph of its module: name, authors, number at arXiv; what it is for a norm without a paper."""
    return (inspect.getdoc(inspect.getmodule(kind)) or "").partition("\n\n")[0].replace("\n", " ")


def facts_of(name: str, kind: type[Norm]) -> str:
    facts = [f"{words} `{value}`" if isinstance(value := getattr(kind, fact, None), str) else words
             for fact, words in FACTS.items() if getattr(kind, fact, None) not in (None, False, name)]  # fmt: skip
    facts += [FOLDS] if folds(name) else []
    return f"It {', '.join(facts)}." if facts else "It looks at nothing but the token itself."


def option_table(kind: type[Norm]) -> list[str]:
    about = {
        name.strip(): " ".join((each.description or "").split())
        for each in parse(inspect.getdoc(kind) or "").params
        for name in each.arg_name.split(",")  # several options may share a line
    }
    own = [each for each in inspect.signature(kind.__init__).parameters.values() if each.kind is each.KEYWORD_ONLY]
    texts = {each.name: with_mathml(about.get(each.name, "")).replace("|", r"\|") for each in own}
    rows = [f"| `{each.name}` | `{each.default!r}` | {texts[each.name]} |" for each in own]
    table = ["| option | default | |", "|---|---|---|", *rows, ""] if rows else []
    return [
        *table,
        "As every norm it takes `heads`, `eps`, `affine`, `device` and `dtype`: [Norm](../norms.md#dynavit.Norm).",
        "",
    ]


def cost_table(costs: list[dict[str, Any]], source: str) -> list[str]:
    if not costs:
        return ["Not measured.", ""]
    rows = []
    for row in costs:
        ratios = (row["forward_ratio"][0], row["training_ratio"][0], row["saved_ratio"])
        rows.append(f"| {SHAPES[row['shape']]}{_variant(row)} | " + " | ".join(f"{ratio:.1f}×" for ratio in ratios) + " |")
    head = ["| input | forward | with backward | memory kept for backward |", "|---|---|---|---|"]
    return [*head, *rows, "", f"Times `nn.LayerNorm`'s, by `dynavit bench norms`: `{source}`.", ""]


def _variant(row: dict[str, Any]) -> str:
    """What the benchmark says behind the norm's name, such as the start of its kernels."""
    variant = row["norm"].partition(" ")[2].strip("()")
    return f" ({variant})" if variant else ""


def newest_costs() -> tuple[dict[str, list[dict[str, Any]]], str]:
    """Norm to its rows in the newest file that `dynavit bench norms` wrote on a quiet machine, and that file."""
    files = sorted((ROOT / "benchmarks" / "results").glob("????-??-??-norms-*-2cores.json"), reverse=True)
    for file in files:
        result = json.loads(file.read_text())
        if "sweep" in result:
            costs: dict[str, list[dict[str, Any]]] = {}
            for row in result["rows"]:
                costs.setdefault(row["norm"].partition(" ")[0], []).append(row)
            return costs, file.relative_to(ROOT).as_posix()
    raise ValueError("benchmarks/results has no file of `dynavit bench norms`")


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
        lengths = values[0].norm(dim=-1).reshape(GRID, GRID)
        lowest = min(lengths.min(), 0.9 * lengths.max())  # equal lengths have one colour, not the pattern of their rounding
        picture = axes.imshow(lengths.numpy(), cmap="viridis", vmin=float(lowest))
        axes.set(title=title, xticks=[], yticks=[])
        figure.colorbar(picture, ax=axes, shrink=0.8)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, facecolor="white")
