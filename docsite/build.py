"""Assemble the documentation site and build it: `make docs`, then open build/site/html/index.html.

Pages come from README, docs and examples; the reference is generated from the code. Warnings are errors, so a link that leads
nowhere stops the build. Nothing in the result is loaded from elsewhere.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from documents_as_pages import ROOT, TOP, example_index, example_page, page_of, place_of
from notebooks import page_of_notebook
from pages_from_files import mend_pages
from reference_commands import command_pages
from reference_names import name_pages
from reference_norms import norm_pages
from reference_recipes import recipe_page

from dynavit.common.extras import require

# The order of pages; every document stands here once. A folder stands for what is left of it, a lone page for itself.
NAV = {
    "Start": "README.md",
    "Tutorials": ["docs/tutorials/"],
    "How to": [
        "docs/install.md",
        "docs/training.md", "docs/recipes.md", "docs/convert.md", "docs/models.md", "docs/cascade.md", "docs/sequences.md",
        "docs/dino.md", "docs/detection.md", "docs/detection_models.md", "docs/fold.md", "docs/export.md", "docs/serve.md",
        "docs/page.md", "docs/serve_scheduler.md", "docs/analyze.md", "docs/robustness.md", "docs/scale.md", "docs/extend.md",
        "docs/compatibility.md",
    ],
    "Norms": ["docs/norms/"],
    "Results": ["docs/results/index.md", "docs/results/", "benchmarks/plan.md"],
    "Examples": ["examples/"],
    "Reference": {
        "Commands": ["reference/commands/"],
        "Norms": ["reference/norms/"],
        "Recipes": "reference/recipes.md",
        "Python": ["reference/"],
    },
    "Project": ["docs/design.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs/sources.md"],
}  # fmt: skip


def main(out: Path) -> None:
    for library in ("latex2mathml", "mkdocstrings", "zensical"):
        require(library, "docs", "the site")
    pages = out / "pages"
    shutil.rmtree(out, ignore_errors=True)
    pages.mkdir(parents=True)
    written = write_pages(pages)
    shutil.copy(ROOT / "docsite" / "site.css", pages)
    config = (ROOT / "docsite" / "zensical.toml").read_text()
    config = config.replace("NAV\n", f"nav = {nav_of(written)}\n").replace("SOURCE", str(ROOT / "src"))
    config = config.replace("DOCSTRINGS", str(ROOT / "docsite" / "docstrings_in_pages.py"))
    (out / "zensical.toml").write_text(config)
    build = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(out / "zensical.toml")]
    subprocess.run(build, check=True, cwd=out)
    mend_pages(out / "html")
    print(f"{len(written)} pages: {out / 'html' / 'index.html'}")


def write_pages(folder: Path) -> list[str]:
    """All pages; their places."""
    documents = [ROOT / name for name in TOP] + sorted((ROOT / "docs").rglob("*.md"))
    texts = {str(place_of(file)): page_of(file) for file in documents}
    examples, notebooks = (sorted((ROOT / "examples").glob(kind)) for kind in ("*.py", "*.ipynb"))
    texts |= {str(place_of(file)): example_page(file) for file in examples}
    texts |= {str(place_of(file)): page_of_notebook(file, folder / "examples") for file in notebooks}
    texts["examples/index.md"] = example_index(examples, notebooks)
    texts |= name_pages() | command_pages() | norm_pages(folder / "reference" / "norms")
    texts["reference/recipes.md"] = recipe_page()
    for place, text in texts.items():
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    for picture in [*(ROOT / "docs").rglob("*.png"), *(ROOT / "docs").rglob("*.svg")]:
        target = folder / picture.relative_to(ROOT / "docs")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, target)
    return sorted(texts)


def nav_of(written: list[str]) -> str:
    """TOML. A page that stands nowhere is an error, so none is forgotten."""
    left = set(written)
    sections = _sections(NAV, left)
    if left:
        raise ValueError(f"docsite/build.py: NAV has no place for {', '.join(sorted(left))}")
    return f"[{sections}]"


def _sections(entries: Mapping[str, Any], left: set[str]) -> str:
    """Sections that have pages; these are taken from `left`."""
    shown = []
    for title, inside in entries.items():
        if isinstance(inside, dict):
            found = _sections(inside, left)
        else:
            found = ", ".join(f'"{place}"' for place in _places([inside] if isinstance(inside, str) else inside, left))
        if found:
            shown.append(f'{{"{title}" = {found if isinstance(inside, str) else f"[{found}]"}}}')
    return ", ".join(shown)


def _places(entries: Sequence[str], left: set[str]) -> list[str]:
    places = []
    for entry in entries:
        inside = entry.removeprefix("docs/")
        own = inside if entry.startswith("reference/") else place_of(ROOT / entry)
        found = sorted(place for place in left if (place.startswith(inside) if entry.endswith("/") else place == own))
        left -= set(found)
        places += sorted(found, key=lambda place: not place.endswith("index.md"))
    return places


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    main(parser.parse_args().out.resolve())
