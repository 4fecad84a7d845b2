"""Pages of the documentation site: links lead to pages, formulas are drawn without scripts, nothing is forgotten."""

import re
import sys

import pytest

from documents import ROOT

sys.path.insert(0, str(ROOT / "docsite"))

import documents_as_pages as documents
import reference_names
import reference_norms
from build import nav_of
from docstrings_in_pages import shown
from math_in_pages import with_mathml
from reference_commands import as_tables, command_pages
from reference_names import name_pages
from reference_norms import facts_of, newest_costs, norm_page, norm_pages, paper_of
from reference_recipes import recipe_page

import dynavit
from cli.test_main import functions
from dynavit.cli.parse import _option_types
from dynavit.cli.recipes import list_recipes
from dynavit.norms.factory import NORMS, options_of


def test_places():
    assert documents.place_of(ROOT / "README.md") == "index.md"
    assert documents.place_of(ROOT / "docs" / "norms" / "dtn.md") == "norms/dtn.md"
    assert documents.place_of(ROOT / "examples" / "ddp.py") == "examples/ddp.md"
    assert documents.place_of(ROOT / "src" / "dynavit" / "recipes" / "digits.yaml") == "reference/recipes.md#digits"
    assert documents.place_of(ROOT / "Makefile") is None


def test_links_lead_to_pages_and_comments_for_tests_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    page = tmp_path / "docs" / "norms" / "x.md"
    page.parent.mkdir(parents=True)
    page.write_text(
        "<!-- test: a => b -->\n[start](../../README.md#here) [e](../../examples/ddp.py) [y](y.md) [p](https://a.b/c)\n"
    )
    text = documents.page_of(page)
    assert text == "[start](../index.md#here) [e](../examples/ddp.md) [y](y.md) [p](https://a.b/c)\n"
    page.write_text("[m](../../Makefile)\n")
    with pytest.raises(ValueError, match=r"docs/norms/x.md links to ../../Makefile, which is no page"):
        documents.page_of(page)


def test_every_document_can_be_a_page():
    for file in [ROOT / name for name in documents.TOP] + sorted((ROOT / "docs").rglob("*.md")):
        assert "\n<!-- test:" not in documents.page_of(file)


def test_formulas_become_mathml_and_code_stays():
    text = with_mathml("costs $a_1$ and `$b$`\n\n$$ x^2 $$\n\n```\n$c$\n```\n")
    assert text.count("<math") == 2 and "`$b$`" in text and "\n$c$\n" in text and 'display="block"' in text
    assert with_mathml("the sum\n$s$ of all").startswith("the sum\n<span><math"), "a <math> that begins a line is a paragraph"


def test_docstrings_with_formulas_and_doctests():
    text = shown("Adds $a$.\n\n>>> add(1,\n...     1)\n2\n\nMore.")
    assert "<math" in text and "\n\n```python\n>>> add(1,\n...     1)\n2\n```\n\nMore." in text


def test_parameters_that_share_a_line_get_one_each():
    text = shown("Sets rows, cols: both.\n\nArgs:\n    a, b: two\n        of them.\n    c: alone.\n")
    each = "    a: two\n        of them.\n    b: two\n        of them.\n    c: alone.\n"
    assert text == f"Sets rows, cols: both.\n\nArgs:\n{each}"


def test_a_page_without_a_place_is_an_error():
    assert nav_of(["index.md", "fold.md"]) == '[{"Start" = "index.md"}, {"How to" = ["fold.md"]}]'
    with pytest.raises(ValueError, match=r"NAV has no place for lost\.md"):
        nav_of(["index.md", "lost.md"])


def test_every_public_name_has_a_page(monkeypatch):
    places = "\n".join(name_pages().values())
    for name in set(dynavit.__all__) - {"__version__"}:
        home = getattr(dynavit, name).__module__
        assert f"::: dynavit.{name}\n" in places or f"::: {home}.{name}\n" in places
    monkeypatch.setattr(dynavit, "__all__", [*dynavit.__all__, "forgotten"])
    with pytest.raises(ValueError, match=r"in no group, in two, or are not public: \['forgotten'\]"):
        name_pages()
    monkeypatch.setattr(dynavit, "__all__", dynavit.__all__[:-1])
    monkeypatch.setattr(reference_names, "GROUPS", {**reference_names.GROUPS, "Twice": ["load"]})
    with pytest.raises(ValueError, match=r"\['load'\]"):
        name_pages()


def test_every_norm_has_a_page(monkeypatch, tmp_path):
    monkeypatch.setattr(reference_norms, "draw_effect", lambda name, file: None)
    pages = norm_pages(tmp_path)
    assert set(pages) == {f"reference/norms/{name}.md" for name in [*NORMS.names(), "index"]}
    assert all(f"({name}.md)" in pages["reference/norms/index.md"] for name in NORMS.names())


@pytest.mark.parametrize("name", NORMS.names())
def test_the_page_of_a_norm_has_paper_formula_shapes_cost_options_and_picture(name):
    costs, source = newest_costs()
    page = norm_page(name, NORMS[name], costs.get(name, []), source)
    own_work = {"dtn_released", "ldfn", "minmax", "zscore"}  # without a paper of their own
    assert ("arXiv" in paper_of(NORMS[name])) == (name not in own_work) and paper_of(NORMS[name]) in page
    assert 'display="block"' in page and "\nShape: " in page and f"]({name}.svg)" in page
    assert facts_of(name, NORMS[name]) in page
    assert page.partition("## Cost")[2].count("×") >= 3 * 3, "forward, backward and memory at several shapes"
    shared = {"heads", "eps", "affine", "device", "dtype"}
    rows = dict(re.findall(r"^\| `(\w+)` \| `.*?` \| (.*) \|$", page, re.MULTILINE))
    assert set(rows) == set(options_of(NORMS[name])) - shared
    assert [option for option, about in rows.items() if not about] == []
    cells = {len(re.findall(r"(?<!\\)\|", line)) for line in page.splitlines() if line.startswith("| `")}
    assert cells <= {4}, "a bar in a text would hide what stands behind it"


@pytest.mark.slow  # the help of every command; tests/cli reads them too
def test_every_command_has_a_page_with_all_its_options():
    pages = command_pages()
    for command, function in functions():
        page = pages[f"reference/commands/{command.split()[0]}.md"]
        part = page.partition(f"\n## {command}\n")[2].partition("\n## ")[0] or page
        # A dictionary of options is written dotted and listed by its name; `*` takes the rest of the words.
        missing = [option for option in _option_types(function) if not re.search(rf"`[^`\n]*--{re.escape(option)}\b", part)]
        assert missing == [], command
        assert f"[{command}]({command.split()[0]}.md" in pages["reference/commands/index.md"]


def test_every_recipe_stands_on_its_page_with_cost_and_result():
    page = recipe_page()
    for recipe in list_recipes():
        part = page.partition(f"\n## {recipe.name}\n")[2].partition("\n## ")[0]
        assert recipe.command in part and f"{recipe.name}.yaml" in part
        shown = re.sub(r"\[([\w/]+)\]\(\.\./\1\.md\)", r"docs/\1.md", part)  # documents are links
        assert f"- Cost: {recipe.cost}\n- Reached: {recipe.reached}" in shown
    assert "[results/norms](../results/norms.md)" in page


def test_help_becomes_tables():
    prose = "Prose.\n\n  x --a 1\n  x --c\n\nMore.\n\n"
    options = "options:\n  --a A     first | second <b>\n            goes on\n  --c       last\n"
    text = as_tables(f"usage: x [options]\n\n{prose}{options}")
    assert "Prose.\n\n```text\n  x --a 1\n  x --c\n```\n\nMore." in text, "examples keep their lines"
    assert "| `--a A` | first \\| second &lt;b> goes on |\n| `--c` | last |" in text and text.startswith("```text\nusage: x")
