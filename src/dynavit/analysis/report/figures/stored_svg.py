"""SVG files that come from a directory, which may be somebody else's: parsed, checked against a list, and written anew.

A page shows figures as elements of its own, so that a script or an address in them would be one of the page. Nothing of the
file reaches the page as it stands: names of elements and attributes are those below, values are of a few plain forms, words are
escaped.
"""

import re
from pathlib import Path
from xml.parsers import expat
from xml.sax.saxutils import escape

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
MOST_CHARACTERS = 16 * 2**20
MOST_DEPTH = 32  # matplotlib nests up to 8

ELEMENTS = {"svg", "rect", "defs", "style", "g", "path", "text", "tspan", "use", "image", "clipPath"}
PROPERTIES = {
    *("fill", "fill-opacity", "fill-rule", "stroke", "stroke-width", "stroke-opacity", "stroke-linecap", "stroke-linejoin"),
    *("stroke-dasharray", "stroke-dashoffset", "stroke-miterlimit", "opacity", "image-rendering", "clip-rule"),
    *("font", "font-family", "font-size", "font-style", "font-weight", "text-anchor", "text-align"),
}

_PLAIN = r"[\w\s.,#%+()-]*"  # numbers, names, lists of them, `rotate(...)`; no address: those have colons, slashes or quotes
_HREF = r"#[\w.-]+|data:image/png;base64,\s*[\w+/=\s]*"
_LOCAL = r"url\(#[\w.-]+\)"
ATTRIBUTES = {
    **dict.fromkeys(("id", "x", "y", "width", "height", "viewBox", "version", "d", "transform"), _PLAIN),
    "href": _HREF,
    "clip-path": _LOCAL,
}

_DECLARATION = re.compile(rf"\s*([a-z-]+)\s*:\s*({_LOCAL}|[\w\s.,#%+'-]*)")
_RULE = re.compile(r"\s*\*\s*\{([^{}]*)\}\s*")  # the one rule of matplotlib's style sheet


def read_svg(file: Path) -> str:
    """As much of the file as may be one of our figures, and one character more."""
    with file.open(encoding="utf-8", errors="replace") as stream:
        return stream.read(MOST_CHARACTERS + 1)


def checked_svg(text: str) -> str:
    """The figure, written anew without namespaces and style sheet. ValueError, with the reason, for one that holds more."""
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"it has more than {MOST_CHARACTERS} characters")
    return _Copy().of(text)


class _Copy:
    """What has been parsed so far, as text."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.open: list[str] = []
        self.rules: list[str] = []  # the words inside <style>
        self.empty = False  # the element that is open holds nothing yet

    def of(self, text: str) -> str:
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.ordered_attributes = True
        parser.buffer_text = True
        parser.StartElementHandler = self.begin
        parser.EndElementHandler = self.end
        parser.CharacterDataHandler = self.words
        parser.StartDoctypeDeclHandler = _refuse_document_type  # before any entity could be declared
        parser.ProcessingInstructionHandler = _refuse_instruction
        try:
            parser.Parse(text, True)
        except expat.ExpatError as error:
            raise ValueError(f"it is no XML: {error}") from error
        return "".join(self.parts)

    def begin(self, name: str, attributes: list[str]) -> None:
        element = _local(name, SVG)
        if element not in ELEMENTS or (element == "svg") != (not self.open) or "style" in self.open:
            raise ValueError(f"<{element}> has no place in it")
        if len(self.open) >= MOST_DEPTH:
            raise ValueError(f"elements are nested deeper than {MOST_DEPTH}")
        self.open.append(element)
        if element != "style":  # the page brings a style sheet of its own
            values = zip(attributes[::2], attributes[1::2], strict=True)
            self.parts.append(f"<{element}{''.join(_attribute(element, key, value) for key, value in values)}>")
            self.empty = True

    def words(self, words: str) -> None:
        if self.open[-1] == "style":
            self.rules.append(words)
        else:
            self.parts.append(escape(words))
            self.empty = False

    def end(self, name: str) -> None:
        element = self.open.pop()
        if element == "style":
            rule = _RULE.fullmatch("".join(self.rules))
            if not rule:
                raise ValueError("its style sheet is not matplotlib's")
            _check_declarations(rule[1])
            self.rules.clear()
        elif self.empty:
            self.parts[-1] = f"{self.parts[-1][:-1]}/>"
        else:
            self.parts.append(f"</{element}>")
        self.empty = False


def _attribute(element: str, name: str, value: str) -> str:
    attribute = _local(name, XLINK)
    if attribute == "style":
        _check_declarations(value)
    elif not re.fullmatch(ATTRIBUTES.get(attribute, "(?!)"), value):
        raise ValueError(f"<{element} {attribute}={value[:40]!r}> is no attribute of our figures")
    return f' {attribute}="{escape(value)}"'


def _check_declarations(text: str) -> None:
    for declaration in filter(str.strip, text.split(";")):
        found = _DECLARATION.fullmatch(declaration)
        if not found or found[1] not in PROPERTIES:
            raise ValueError(f"the style {declaration.strip()[:40]!r} is none of our figures")


def _local(name: str, namespace: str) -> str:
    """The name without its namespace. That of another one keeps it, and is on no list then."""
    return name.removeprefix(f"{namespace} ")


def _refuse_document_type(*_: object) -> None:
    raise ValueError("it declares a document type")


def _refuse_instruction(target: str, _: str) -> None:
    raise ValueError(f"it has an instruction, <?{target}?>")
