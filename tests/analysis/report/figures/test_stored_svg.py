"""SVG files of somebody else: refused if anything in them is not of our figures' kind, and never copied as they stand."""

import pytest

from dynavit.analysis.report.figures import stored_svg
from dynavit.analysis.report.figures.canvas import for_page, svg_and_png
from dynavit.analysis.report.figures.dots import DotRow, dots_figure
from dynavit.analysis.report.figures.stored_svg import MOST_DEPTH, checked_svg, read_svg

HEAD = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 1 1"'
ATTACKS = {
    "on the root": f"{HEAD} onload='x()'/>",
    "slash for a blank": "<svg/onload=alert(1) viewBox='0 0 1 1'/>",
    "quote before the event": f'{HEAD}><image x=">" onerror="x()"/></svg>',
    "no blank between": f'{HEAD}><g id="1"onload="x()"/></svg>',
    "single quotes": f"{HEAD}><use href='//elsewhere.example/a.svg#b'/></svg>",
    "import": f"{HEAD}><style>@import 'https://elsewhere.example/a.css';</style></svg>",
    "a second rule": f"{HEAD}><style>*{{fill: red}} body{{fill: red}}</style></svg>",
    "an address in a rule": f"{HEAD}><style>*{{fill: url(https://elsewhere.example)}}</style></svg>",
    "an address in a style": f'{HEAD}><g style="fill: url(https://elsewhere.example/a#b)"/></svg>',
    "an escape in a style": rf'{HEAD}><g style="fill: \75rl(x)"/></svg>',
    "another property": f'{HEAD}><g style="background-image: none"/></svg>',
    "an expression": f'{HEAD}><g style="fill: expression(x)"/></svg>',
    "script": f"{HEAD}><script>x()</script></svg>",
    "script of another namespace": f'{HEAD}><h:script xmlns:h="http://www.w3.org/1999/xhtml">x()</h:script></svg>',
    "an allowed name of another namespace": f'{HEAD}><h:g xmlns:h="http://www.w3.org/1999/xhtml"/></svg>',
    "an attribute of another namespace": f'{HEAD}><g xmlns:h="h" h:id="a"/></svg>',
    "link by script": f'{HEAD}><use xlink:href="javascript:x()"/></svg>',
    "link by script, encoded": f'{HEAD}><use xlink:href="&#106;avascript:x()"/></svg>',
    "link with a tab": f'{HEAD}><use href="&#9;javascript:x()"/></svg>',
    "picture of another kind": f'{HEAD}><image href="data:image/svg+xml;base64,PHN2Zz4="/></svg>',
    "a link": f'{HEAD}><a href="#b"/></svg>',
    "animate": f'{HEAD}><use><animate attributeName="href" to="javascript:x()"/></use></svg>',
    "set": f'{HEAD}><use><set attributeName="href" to="javascript:x()"/></use></svg>',
    "HTML inside": f"{HEAD}><foreignObject><g/></foreignObject></svg>",
    "figure in a figure": f"{HEAD}><svg/></svg>",
    "clipped by another file": f'{HEAD}><g clip-path="url(a.svg#b)"/></svg>',
    "style sheet beside": f'<?xml-stylesheet href="https://elsewhere.example/a.css"?>{HEAD}/>',
    "document type": f'<!DOCTYPE svg SYSTEM "https://elsewhere.example/a.dtd">{HEAD}/>',
    "entities": f'<!DOCTYPE svg [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>{HEAD}><text>&b;</text></svg>',
    "unknown entity": f"{HEAD}><text>&b;</text></svg>",
    "no figure": "<g/>",
    "nothing": "",
    "two roots": f"{HEAD}/><script/>",
    "deep": f"{HEAD}>{'<g>' * MOST_DEPTH}{'</g>' * MOST_DEPTH}</svg>",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_what_our_figures_do_not_hold_is_refused(attack):
    with pytest.raises(ValueError, match=r"its? |<|style|nested"):
        checked_svg(attack)


def test_words_stay_words():
    """However they were written: nothing of the file is copied."""
    written = "<![CDATA[<script>x()</script>]]> &lt;b&gt; &#x3c;i> \"'&amp;<!-- <p> -->"
    assert checked_svg(f"{HEAD}><text>{written}</text></svg>") == (
        '<svg viewBox="0 0 1 1"><text>&lt;script&gt;x()&lt;/script&gt; &lt;b&gt; &lt;i&gt; "\'&amp;</text></svg>'
    )


def test_elements_keep_their_order_and_nesting():
    inner = '<g id="a"><g/><g><path d="M 0 0"/><path/></g><text>a<tspan>b</tspan>c</text></g><use href="#a"/>'
    assert checked_svg(f"{HEAD}>{inner}</svg>") == f'<svg viewBox="0 0 1 1">{inner}</svg>'


def test_our_own_figures_stay_as_they_are():
    """But for line ends inside values, which XML reads as blanks."""
    rows = [DotRow("<b> & 'so' \"on\"", -1, 1.0, (0.5, 1.5), [0.6, 1.4])]
    svg, _ = svg_and_png("dots", dots_figure("label", "caption", "accuracy", rows))
    assert for_page(checked_svg(svg)).split() == for_page(svg).split()


def test_a_large_file_is_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_svg, "MOST_CHARACTERS", 20)
    file = tmp_path / "a.svg"
    file.write_bytes(b"<svg>\xff" + b" " * 100 + b"</svg>")
    assert len(read_svg(file)) == 21
    with pytest.raises(ValueError, match="more than 20 characters"):
        checked_svg(read_svg(file))
