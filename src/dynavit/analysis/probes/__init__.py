"""Run a model and report each call of a norm and each softmax of an attention. See `observe`."""

from .calls import AttentionCall, NormCall
from .observe import observe
from .sites import NormSite, attention_paths, norm_sites, require

__all__ = ["AttentionCall", "NormCall", "NormSite", "attention_paths", "norm_sites", "observe", "require"]
