"""README and docs as pages of the site: links lead to pages, comments for tests are left out."""

import os
import re
from pathlib import Path

from math_in_pages import with_mathml
from notebooks import read

ROOT = Path(__file__).resolve().parents[1]
TOP = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "benchmarks/plan.md": "plan.md",
}
_COMMENT = re.compile(r"^<!-- .*? -->\n", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
CODE = {".py": "python", ".yaml": "yaml"}


def place_of(file: Path) -> str | None:
    """Where a file of the repository stands in the site; None: nowhere.

    >>> place_of(ROOT / "docs" / "fold.md"), place_of(ROOT / "examples" / "my_norm.py"), place_of(ROOT / "Makefile")
    ('fold.md', 'examples/my_norm.md', None)
    """
    name = file.relative_to(ROOT).as_posix()
    if name in TOP:
        return TOP[name]
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    if name == "examples":
        return "examples/index.md"
    if name.startswith("examples/"):
        return f"examples/{file.stem}.md"
    if name.startswith("src/dynavit/recipes/"):
        return f"reference/recipes.md#{file.stem}"
    return None


def page_of(file: Path) -> str:
    """A document of the repository as a page."""
    text = _COMMENT.sub("", file.read_text(encoding="utf-8"))
    own = place_of(file)
    assert own is not None, file
    return with_mathml(_LINK.sub(lambda link: _led(link, file, own), text))


def _led(link: re.Match[str], file: Path, own: str) -> str:
    """A link between pages; text without a link where the target is no page."""
    target, anchor = link[1], link[2] or ""
    if "://" in target:
        return link[0]
    place = place_of((file.parent / target).resolve())
    if place is None:
        raise ValueError(f"{file.relative_to(ROOT)} links to {target}, which is no page of the site")
    return f"]({os.path.relpath(place, Path(own).parent or '.')}{anchor})"


def example_page(file: Path) -> str:
    """An example with its docstring as the introduction."""
    return f"# {file.name}\n\n```{CODE[file.suffix]}\n{file.read_text(encoding='utf-8')}```\n"


def example_index(files: list[Path], notebooks: list[Path]) -> str:
    lines = ["# Examples", "", "Each runs on the built-in digits in about a minute and is executed by a test.", ""]
    for file in notebooks:
        title = read(file)["cells"][0]["source"][0].removeprefix("# ").strip()
        lines.append(f"- [{file.stem}]({file.stem}.md): {title}, a notebook.")
    for file in files:
        about = file.read_text(encoding="utf-8").split('"""')[1].strip().splitlines()[0]
        lines.append(f"- [{file.stem}]({file.stem}.md): {about}")
    return "\n".join(lines) + "\n"
