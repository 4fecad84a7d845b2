"""Norms from outside the package, registered for one test."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dynavit.common import plugins
from dynavit.norms.factory import NORMS

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_norm.py"

# Nothing but the formula: each channel by its largest absolute value among the tokens of a sample. It mixes tokens, and does
# not say so.
SILENT = """
import dynavit

@dynavit.register_norm("silent")
class Silent(dynavit.Norm):
    def normalise(self, x, grid, mask):
        return x / (x.abs().amax(1, keepdim=True) + self.eps)
"""

# A fixed map at evaluation and in training.
FIXED = """
import dynavit

@dynavit.register_norm("fixed")
class Fixed(dynavit.Norm):
    '''Three times the input.'''

    def normalise(self, x, grid, mask):
        return 3 * x

    def affine_map(self):
        return 3 * self.weight, self.bias
"""

# Needs positions: patches minus the mean of their row; tokens in front stay as they are.
ROWS = """
import torch
import dynavit

@dynavit.register_norm("rows")
class Rows(dynavit.Norm):
    needs_grid = True

    def __init__(self, dim, num_prefix_tokens=0, **shared):
        super().__init__(dim, **shared)
        self.num_prefix_tokens = num_prefix_tokens

    def normalise(self, x, grid, mask):
        rows, cols = grid
        front, patches = x[:, : self.num_prefix_tokens], x[:, self.num_prefix_tokens :].unflatten(1, (rows, cols))
        return torch.cat([front, (patches - patches.mean(2, keepdim=True)).flatten(1, 2)], 1)
"""


@contextmanager
def a_guest(file: Path, text: str = "") -> Iterator[None]:
    """Load a plug-in file, written with `text` if there is any, and forget it afterwards."""
    things, guests, files = dict(NORMS._things), dict(NORMS._guests), dict(plugins._files)
    if text:
        file.write_text(text)
    try:
        plugins.load_plugin(file)
        yield
    finally:
        NORMS._things, NORMS._guests, plugins._files = things, guests, files
