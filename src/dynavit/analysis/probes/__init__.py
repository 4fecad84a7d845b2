"""Look into a model while it runs: what its norms do to tokens, and what its attentions look at. See `observe`."""

from .calls import AttentionCall, NormCall
from .observe import observe
from .sites import NormSite, attention_paths, norm_sites, require

__all__ = ["AttentionCall", "NormCall", "NormSite", "attention_paths", "norm_sites", "observe", "require"]
