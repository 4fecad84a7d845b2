"""A service that answers images within a budget. Exits are counted from 1 in all its files, as people do.

app = dynavit.deploy.serve.create_app("runs/dvt-onnx")     an ASGI app; `dynavit serve` and Ray Serve wrap it
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app import create_app as create_app

__all__ = ["create_app"]


def __getattr__(name: str) -> Any:
    if name != "create_app":  # pure parts such as the scheduler are imported without it
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .app import create_app

    return create_app
