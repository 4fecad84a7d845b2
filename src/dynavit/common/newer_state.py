"""State that checkpoints of earlier versions lack: layers name it in `newer_state`, and it starts as in a new layer."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def newer_names(module: "nn.Module") -> set[str]:
    """Names in the module's state dict that an older one may be without."""
    return {
        f"{path}.{name}" if path else name for path, part in module.named_modules() for name in getattr(part, "newer_state", ())
    }
