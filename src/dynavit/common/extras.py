"""Libraries that come with an extra of this package."""

import importlib
from typing import Any


def require(module: str, extra: str, purpose: str = "") -> Any:
    """The module; where it is not installed, an error that says how to get it.

    Args:
        module: what is imported, dotted or not.
        extra: of this package, that brings it.
        purpose: what needs it, for the beginning of the sentence.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise  # it is there, but something it needs is not
        raise ValueError(not_installed(module, extra, purpose)) from error


def not_installed(library: str, extra: str, purpose: str = "") -> str:
    """
    >>> not_installed("uvicorn", "serve")
    "uvicorn is not installed; it comes with the extra [serve]: pip install 'dynavit[serve]'"
    >>> not_installed("uvicorn", "serve", "dynavit serve")
    "dynavit serve needs uvicorn, which is not installed; it comes with the extra [serve]: pip install 'dynavit[serve]'"
    """
    missing = f"{purpose} needs {library}, which is not installed" if purpose else f"{library} is not installed"
    return f"{missing}; it comes with the extra [{extra}]: pip install 'dynavit[{extra}]'"
