"""Checkpoints of other people's releases: their state dicts become models of ours that give the same logits.

| file | holds |
|---|---|
| `importing.py` | `import_released` |
| `family.py` | facts about a family of released models |
| `dtn.py`, `t2t.py`, `dvt.py` | the releases of DTN, of T2T-ViT (and UN), and of DVT |
| `norms.py` | the releases' norms, as ours |
| `identify.py` | which model keys and shapes describe |
| `fill.py` | numbers into our model |
"""

from .importing import import_released

__all__ = ["import_released"]
