"""Libraries that come with an extra of this package."""

import importlib
from typing import Any


def require(module: str, extra: str) -> Any:
    """The module; where it is not installed, an error that says how to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise  # it is there, but something it needs is not
        raise ValueError(
            f"{module} is not installed; it comes with the extra [{extra}]: pip install -c constraints.txt -e '.[{extra}]'"
        ) from error
