"""The Dynamic Vision Transformer (DVT): a cascade of classifiers, coarse to fine, that stops as soon as one is sure.

| file | holds |
|---|---|
| `model.py` | the cascade: all exits, one exit at a time, or early exit |
| `exit.py` | one exit: tokenizer, blocks, head |
| `options.py`, `entries.py` | options in groups; named cascades |
| `reuse.py`, `upsample.py` | features and attention logits of the exit before, on this exit's grid |
| `from_vit.py` | weights of a plain vision transformer for every exit |
| `state.py` | a batch between two exits, and its predictions |
| `policy.py` | when an image may leave |
| `calibration.py` | thresholds for a budget or an accuracy |
"""

from . import entries as entries  # they register themselves
from .model import Cascade
from .options import Blocks, Reuse, Tokens
from .policy import ExitPolicy
from .state import ExitState, Predictions

__all__ = ["Blocks", "Cascade", "ExitPolicy", "ExitState", "Predictions", "Reuse", "Tokens"]
