"""LDFN without the least-squares fit with which it takes over from LayerNorm: what that fit is worth (E8 of plan.md).

dynavit train --config finetune --plugin benchmarks/unfitted.py --norm ldfn_unfitted --data-dir PHOTOS --out RUN
"""

from dynavit import register_norm
from dynavit.norms.ldfn import LearnableDynamicFeatureNorm


@register_norm("ldfn_unfitted")
class Unfitted(LearnableDynamicFeatureNorm):
    def _fit(self) -> None:
        self.fitted.fill_(True)  # weight and bias stay 1 and 0, as PRepBN's batch norm begins
