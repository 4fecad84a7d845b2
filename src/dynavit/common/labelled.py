"""Facts about what a command does, as lines to read."""

from collections.abc import Mapping


def labelled_lines(facts: Mapping[str, str]) -> list[str]:
    """
    >>> labelled_lines({"data": "digits", "norm": "dtn"})
    ['data  digits', 'norm  dtn']
    """
    width = max(map(len, facts), default=0)
    return [f"{label:<{width}}  {text}" for label, text in facts.items()]
