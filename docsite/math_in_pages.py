"""Formulas as MathML, which browsers draw by themselves: no script, no outside address."""

import re

_CODE = re.compile(r"(```.*?```|`[^`\n]+`)", re.DOTALL)
_FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<![\w\\$])\$([^$\n]+?)\$(?!\w)", re.DOTALL)


def with_mathml(text: str) -> str:
    """Markdown with `$$...$$` and `$...$` outside code replaced."""
    parts = _CODE.split(text)
    return "".join(part if number % 2 else _FORMULA.sub(_mathml, part) for number, part in enumerate(parts))


def _mathml(found: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    shown, inline = found.groups()
    if shown is None:
        # Markdown takes a <math> that begins a line for a block, which ends the paragraph; a <span> is none.
        return f"<span>{convert(inline.strip())}</span>"
    return f"\n\n{convert(' '.join(shown.split()), display='block')}\n\n"
