"""The page of recipes, with cost and result from the head of each file."""

from documents_as_pages import ROOT


def recipe_page() -> str:
    lines = ["# Recipes", "", "`dynavit train --config NAME`; `dynavit list recipes` shows them too.", ""]
    for file in sorted((ROOT / "src" / "dynavit" / "recipes").glob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        head = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ") and ": " in line]
        about = dict(line.split(": ", 1) for line in head)
        lines += [f"## {file.stem}", "", about["What"] + ".", "", f"```sh\n{about['Command']}\n```", ""]
        lines += [f"- Cost: {about['Cost']}", f"- Reached: {about['Reached']}", ""]
        body = "\n".join(line for line in text.splitlines() if not line.startswith("# ")).strip()
        lines += [f'??? note "{file.name}"\n', *(f"    {line}" for line in ["```yaml", *body.splitlines(), "```"]), ""]
    return "\n".join(lines)
