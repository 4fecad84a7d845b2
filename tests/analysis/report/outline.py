"""A page taken apart: its tags, and its text by the kind of element it stands in. And the blocks of a section."""

from html.parser import HTMLParser


class Outline(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self.open = [], {}, []
        self.feed(page)
        assert self.open == [], "something is left open"

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"{tag} closes something else"

    def handle_data(self, data):
        if data.strip():
            self.text.setdefault(self.open[-1], []).append(data.strip())

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def blocks(section, kind):
    """The blocks of one kind in a section."""
    return [block for block in section.blocks if isinstance(block, kind)]


def captions(section):
    from dynavit.analysis.report import Figures

    return [figure.caption for block in blocks(section, Figures) for figure in block.figures]
