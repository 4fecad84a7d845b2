"""The built site, opened from the file system: nothing comes from elsewhere, no link is broken, a reader clicks through it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.serve.browser import BROWSER, Browser
from documents import ROOT

sys.path.insert(0, str(ROOT / "docsite"))

import build

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site; links that lead nowhere would have stopped it."""
    folder = tmp_path_factory.mktemp("site")
    build.main(folder)
    return folder / "html"


def test_the_site_is_built_and_loads_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    loaded = re.compile(r"""(?:<script[^>]*src|<link[^>]*href|<img[^>]*src)=["']?(?:https?:)?//""")
    assert [page.name for page in pages if loaded.search(page.read_text())] == []
    norm = (site / "reference" / "norms" / "dtn.html").read_text()
    assert "<math" in norm and (site / "reference" / "norms" / "dtn.svg").is_file()
    raw = re.compile(r"\$\$|\\\\(?:frac|lambda|mathrm)")
    assert [page.name for page in pages if raw.search(page.read_text())] == [], "formulas that were not drawn"


def test_a_link_that_leads_nowhere_stops_the_build(tmp_path, monkeypatch):
    def one_page(folder):
        (folder / "index.md").write_text("# Start\n\n[gone](gone.md)\n")
        return ["index.md"]

    monkeypatch.setattr(build, "write_pages", one_page)
    with pytest.raises(subprocess.CalledProcessError):
        build.main(tmp_path)


# ---- A reader

# The search lives in a shadow tree, so its links are found through its host.
RESULTS = (
    "[...document.querySelectorAll('*')].flatMap("
    "each => each.shadowRoot ? [...each.shadowRoot.querySelectorAll('a[role=option]')] : [])"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(params=[(400, False), (400, True), (1280, False), (1280, True)], ids=str)
def tab(request, browser, site):
    """The start page. At the end: nothing was loaded from elsewhere, nothing went wrong."""
    width, dark = request.param
    opened = browser.tab(f"file://{site}/index.html", width=width, dark=dark)
    opened.width, opened.dark = width, dark
    yield opened
    opened.run("1")  # reads what the browser has told meanwhile
    # The theme's search asks for the focus twice; whether the browser says so depends on its speed.
    assert [said for said in opened.complaints if not said.startswith("Autofocus processing was blocked")] == []
    home = f"file://{site}/"
    assert [url for url in opened.requests if not url.startswith((home, "data:", "blob:"))] == []
    opened.close()


def on_page(tab, place, title):
    """It has arrived, is drawn in the colours asked for, and fits the width."""
    tab.until(f"location.pathname.endsWith({place!r}) && document.querySelector('h1').innerText.startsWith({title!r})")
    light = tab.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).every(part => part > 127)")
    assert light != tab.dark
    assert tab.run("document.documentElement.scrollWidth <= innerWidth"), f"{place} is wider than {tab.width} pixels"
    assert tab.run("[...document.querySelectorAll('article img')].every(each => each.complete && each.naturalWidth > 0)")


def open_section(tab, name, page):
    """By the tabs on top of a wide page, by the drawer of a narrow one."""
    if tab.width > 1000:
        follow(tab, ".md-tabs a", name)
        follow(tab, "nav.md-nav--primary a", page)
        return
    tab.click("header label[for=__drawer]")
    follow(tab, "nav.md-nav--primary label", name)
    follow(tab, "nav.md-nav--primary a", page)


def follow(tab, selector, words):
    """Click the first such element with these words that can be seen, when it has come to rest."""
    seen = f"""(() => {{ const found = [...document.querySelectorAll({json.dumps(selector)})].find(each =>
        each.innerText.trim() == {json.dumps(words)} && each.checkVisibility() && each.getBoundingClientRect().width > 0);
        if (!found) return false; const box = found.getBoundingClientRect(), now = [box.left, box.top].join();
        if (box.left < 0) return false;
        const rests = found.dataset.was == now; found.dataset.was = now;
        for (const other of document.querySelectorAll("[data-next]")) delete other.dataset.next;
        found.dataset.next = ""; return rests; }})()"""
    tab.until(seen)
    tab.click("[data-next]")


@pytest.mark.skipif(BROWSER is None, reason="needs a browser: install chromium")
def test_a_reader_clicks_through(tab):
    on_page(tab, "/index.html", "dynavit")
    tab.click("article a[href='tutorials/6_serve.html']")
    on_page(tab, "/tutorials/6_serve.html", "Serve it")
    open_section(tab, "Reference", "Norms")
    on_page(tab, "/reference/norms/index.html", "Norms")
    tab.click("article a[href='dtn.html']")
    on_page(tab, "/reference/norms/dtn.html", "dtn")
    assert tab.run("[...document.querySelectorAll('article math')].every(each => each.getBoundingClientRect().height > 5)")

    tab.click("header label[for=__search]" if tab.width < 1000 else "button.md-search__button")
    tab.until("[...document.querySelectorAll('*')].some(each => each.shadowRoot?.activeElement)")
    tab.type("deadline cascade")
    tab.until(f"{RESULTS}.length > 0")
    found = tab.run(f"{RESULTS}.map(each => each.href)")
    tab.press("Enter")
    first = found[0].partition("?")[0].partition("#")[0]
    tab.until(f"location.href.startsWith({first!r})")
    on_page(tab, Path(first).name, "")
