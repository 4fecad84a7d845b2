"""Pages of the documentation site: links lead to pages, formulas are drawn without scripts, nothing is forgotten."""

import re
import sys
from pathlib import Path

import pytest

from documents import ROOT

sys.path.insert(0, str(ROOT / "docsite"))

import documents_as_pages as documents
from build import main, nav_of
from math_in_pages import with_mathml
from reference_commands import as_tables
from reference_names import name_pages


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


def test_a_page_without_a_place_is_an_error():
    assert nav_of(["index.md", "fold.md"]) == '[{"Start" = "index.md"}, {"How to" = ["fold.md"]}]'
    with pytest.raises(ValueError, match=r"NAV has no place for lost\.md"):
        nav_of(["index.md", "lost.md"])


def test_every_public_name_has_a_page():
    assert sum(text.count("::: dynavit.") for text in name_pages().values()) > 30


def test_help_becomes_tables():
    text = as_tables(
        "usage: x [options]\n\nProse.\n\noptions:\n  --a A     first | second <b>\n            goes on\n  --c       last\n"
    )
    assert "| `--a A` | first \\| second &lt;b> goes on |\n| `--c` | last |" in text and text.startswith("```text\nusage: x")


@pytest.mark.slow
def test_the_site_is_built_and_loads_nothing_from_elsewhere(tmp_path):
    main(tmp_path)
    pages = list((tmp_path / "html").rglob("*.html"))
    assert len(pages) > 60
    loaded = re.compile(r"""(?:<script[^>]*src|<link[^>]*href|<img[^>]*src)=["']?(?:https?:)?//""")
    assert [page.name for page in pages if loaded.search(page.read_text())] == []
    norm = (tmp_path / "html" / "reference" / "norms" / "dtn.html").read_text()
    assert "<math" in norm and (tmp_path / "html" / "reference" / "norms" / "dtn.svg").is_file()
    assert Path(tmp_path / "html" / "search.js").is_file(), "search works from the file system"
