"""Docstrings as pages show them. mkdocstrings takes formulas and doctests for prose, parameters that share a line for one."""

import re
import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))

from math_in_pages import with_mathml

_DOCTEST = re.compile(r"^>>> .*\n?(?:.+\n?)*", re.MULTILINE)
_SHARED = re.compile(r"^( +)(\w+(?:, \w+)+)(: .+(?:\n\1 .*)*)", re.MULTILINE)


class ShownDocstrings(griffe.Extension):
    """Loaded by zensical.toml."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = shown(obj.docstring.value)


def shown(text: str) -> str:
    """
    >>> shown("Adds.\\n\\n>>> 1 + 1\\n2")
    'Adds.\\n\\n```python\\n>>> 1 + 1\\n2\\n```\\n'
    """
    text = _SHARED.sub(_one_each, text)
    return _DOCTEST.sub(lambda found: f"```python\n{found[0].rstrip()}\n```\n", with_mathml(text))


def _one_each(found: re.Match[str]) -> str:
    indent, shared, about = found.groups()
    return "\n".join(f"{indent}{name}{about}" for name in shared.split(", "))
