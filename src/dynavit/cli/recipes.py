"""Recipes that come with the package: files for `--config`, with a few words about each on top.

# What: a small ViT on handwritten digits
# Command: dynavit train --config digits --out runs/digits
# Cost: 40 s on 2 cores
# Reached: 98.1 % top-1 on test (seed 0), or "not run"
"""

import re
from dataclasses import dataclass
from pathlib import Path

from ..common.registry import nearest_match_error

DIRECTORY = Path(__file__).parents[1] / "recipes"


@dataclass(frozen=True)
class Recipe:
    """The comments on top of a recipe."""

    name: str
    what: str
    command: str
    cost: str
    reached: str


def list_recipes() -> list[Recipe]:
    """Every recipe, in alphabetical order."""
    return [read_recipe(file) for file in sorted(DIRECTORY.glob("*.yaml"))]


def read_recipe(file: Path) -> Recipe:
    found = dict(re.findall(r"^# (\w+): (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE))
    lines = {name: found.get(name.capitalize(), "") for name in ("what", "command", "cost", "reached")}
    return Recipe(file.stem, **lines)


def config_file(given: str) -> Path:
    """The file that `--config` means: the one of that name, else the recipe."""
    file, recipe = Path(given), DIRECTORY / f"{given}.yaml"
    if file.is_file():
        return file
    if recipe.is_file() and recipe.parent == DIRECTORY:
        return recipe
    here = file.parent if file.parent.is_dir() else Path()
    known = [str(other) for pattern in ("*.yaml", "*.yml") for other in here.glob(pattern)]
    raise nearest_match_error("recipe or file", given, [*known, *(file.stem for file in DIRECTORY.glob("*.yaml"))])
