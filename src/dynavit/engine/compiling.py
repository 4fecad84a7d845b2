"""torch.compile if wanted, and without it if that fails."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import nn

P = ParamSpec("P")
T = TypeVar("T")


class Compiled:
    """A model whose forward pass is compiled in place: its class, its names and its state stay as they are."""

    def __init__(self, model: nn.Module, wanted: bool, note: Callable[[str], None]) -> None:
        self.model, self.active, self.note = model, wanted, note
        if wanted:
            model.forward = torch.compile(model.forward)

    def attempt(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `work`, which can be repeated. If it fails with the compiled model, it runs again with the model as it was.

        Compilation happens when a shape first comes by, and the backward pass is compiled later still: so any step may fail.
        """
        try:
            return work(*args, **kwargs)
        except Exception as error:
            if not self.active:
                raise
            self.undo()
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            self.note(f"torch.compile failed, going on without it ({reason})")
            return work(*args, **kwargs)

    def undo(self) -> None:
        if self.active:
            self.active = False
            del self.model.forward
