"""The page of recipes, with cost and result from the head of each file."""

import re

from dynavit.cli.recipes import DIRECTORY, list_recipes

_HEAD = re.compile(r"^# (?:What|Command|Cost|Reached): .*\n", re.MULTILINE)  # stands above the file already


def recipe_page() -> str:
    lines = ["# Recipes", "", "Every option after `--config NAME` changes it. [All of them in one table](../recipes.md).", ""]
    for recipe in list_recipes():
        lines += [
            f"## {recipe.name}",
            "",
            f"{recipe.what[0].upper()}{recipe.what[1:]}.",
            "",
            f"```sh\n{recipe.command}\n```",
            "",
        ]
        lines += [f"- Cost: {_linked(recipe.cost)}", f"- Reached: {_linked(recipe.reached)}", ""]
        body = _HEAD.sub("", (DIRECTORY / f"{recipe.name}.yaml").read_text(encoding="utf-8")).strip()
        lines += [f'??? note "{recipe.name}.yaml"\n', *(f"    {line}" for line in ["```yaml", *body.splitlines(), "```"]), ""]
    return "\n".join(lines)


def _linked(text: str) -> str:
    """Documents that a recipe names as links."""
    return re.sub(r"docs/([\w/]+)\.md", r"[\1](../\1.md)", text)
