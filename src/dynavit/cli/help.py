"""The look of `--help`: the docstring's own line breaks, and for every option its type and default in plain words."""

import argparse
import re

from jsonargparse import DefaultHelpFormatter


class Help(DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Without what jsonargparse adds for itself: `--norms+`, `<class 'Path'>`, `{true,false}` of switches."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        shown = super()._format_action_invocation(action)
        shown = ", ".join(part for part in re.split(r", (?=--)", shown) if "+" not in part.split(" ")[0])
        option = shown.partition(" ")[0]
        if shown.endswith("{true,false}"):
            return f"{option}, --no-{option[2:]}" if action.default is True else option
        return shown

    def _expand_help(self, action: argparse.Action) -> str:
        return plain_type(super()._expand_help(action))


def plain_type(text: str) -> str:
    """
    >>> plain_type("where. (required, type: <class 'Path'>)")
    'where. (required, type: Path)'
    >>> plain_type("which. (type: Optional[Literal['model', 'ema']], default: null)")
    'which. (type: model or ema, default: null)'
    >>> plain_type("(type: Optional[Annotated[int, at least 1]], default: null)")
    '(type: int at least 1, default: null)'
    """
    text = re.sub(r"(?:typing\.)?Annotated\[(?:<class ')?(\w+)(?:'>)?, ([^\]]*)\]", r"\1 \2", text)
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", text)
    text = re.sub(r"(?:a typing\.)?Literal\[([^\]]*)\]", lambda found: " or ".join(re.findall(r"'([^']*)'", found[1])), text)
    return re.sub(r"Optional\[((?:[^\[\]]|\[[^\[\]]*\])*)\]", r"\1", text)
