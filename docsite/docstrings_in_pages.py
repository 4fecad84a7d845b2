"""Formulas and doctests of docstrings as pages show them; mkdocstrings takes both for prose."""

import re
import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))

from math_in_pages import with_mathml

_DOCTEST = re.compile(r"^>>> .*\n?(?:.+\n?)*", re.MULTILINE)


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
    return _DOCTEST.sub(lambda found: f"```python\n{found[0].rstrip()}\n```\n", with_mathml(text))
