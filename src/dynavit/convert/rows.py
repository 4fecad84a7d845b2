"""The rows of a plan: whether each norm is swapped, kept or refused, and why."""

from torch import nn

from ..norms.factory import norm_class_of
from . import trace as tracing
from .causal import causal_modules, causal_reason
from .plan import Action, SwapPlan, SwapRow
from .sites import LocatedNorm
from .view import Trouble, Viewer


class RowMaker:
    """Rows of the norms of one model. The plan says by which norm they are to be replaced."""

    def __init__(self, model: nn.Module, plan: SwapPlan, found: list[LocatedNorm], trace: tracing.Trace | None) -> None:
        self.plan, self.trace, self.viewer = plan, trace, Viewer(model, plan, trace)
        self.norm_class = norm_class_of(plan.norm)
        self.causal = causal_modules(model) if self.norm_class.mixes_tokens else {}
        in_blocks = [index for index, item in enumerate(found) if item.depth is not None]
        self.has_blocks = bool(in_blocks)
        self.first_in_block, self.last_in_block = (in_blocks[0], in_blocks[-1]) if in_blocks else (0, -1)
        self.position = {item.path: index for index, item in enumerate(found)}

    def row(self, item: LocatedNorm) -> tuple[SwapRow, bool]:
        """The row of one norm, and whether `where` may choose it against its default."""
        calls = self.trace.calls[item.path] if self.trace is not None else []
        _correct_by_calls(item, calls)
        row = SwapRow(
            path=item.path,
            old="BatchNorm1d" if item.site == "linear_bn" else type(item.module).__name__,
            action="refuse",
            reason="",
            site=item.site,
            depth=item.depth,
            dim=item.old.dim,
            heads=1,
            layout="channels_first" if item.old.channels_first else "tokens",
            num_prefix_tokens=0,
            ndim=self.viewer.ndim,
            also=item.also,
        )
        try:
            self._check_old(item, calls)
            view = self.viewer.view(item, calls)
        except Trouble as trouble:
            row.reason = str(trouble)
            return row, False
        row.layout, row.grid, row.num_prefix_tokens, row.ndim = view.layout, view.grid, view.prefix, view.ndim
        row.action, row.reason = self._default(item, calls)
        row.heads, remark, fit = self._heads(item)
        if remark:
            row.reason += f"; {remark}"
        if not fit and row.action == "swap":
            row.action = "refuse"
        return row, True

    def _check_old(self, item: LocatedNorm, calls: list[tracing.Call]) -> None:
        if item.old.trouble:
            raise Trouble(item.old.trouble)
        if self.norm_class.mixes_tokens:
            why = "causal=True" if self.plan.causal else causal_reason(item.path, item.block, self.causal)
            if why:
                raise Trouble(f"{self.plan.norm} mixes tokens, so a token would see later ones ({why})")
        if any(call.is_ln is False and not call.is_ln_first for call in calls):
            raise Trouble(
                f"its output is not that of {'LayerNorm' if item.old.kind == 'ln' else 'RMSNorm'}: it does something else too"
            )

    def _default(self, item: LocatedNorm, calls: list[tracing.Call]) -> tuple[Action, str]:
        """The action unless `where` says otherwise, and its reason."""
        if item.site == "linear_bn":
            return "refuse", (
                "a BatchNorm behind a linear layer, no LayerNorm in front of it; "
                "where={'site': 'linear_bn'} swaps it all the same"
            )
        if self.trace is not None and not calls:
            return "keep", "is never called in a forward pass"
        if item.place == "block" and item.site in ("attn", "mlp"):
            return "swap", f"belongs to the {'attention' if item.site == 'attn' else 'MLP'} of {item.block or 'the block'}"
        return "keep", self._reason_to_keep(item)

    def _reason_to_keep(self, item: LocatedNorm) -> str:
        if item.place == "block":
            return (
                f"stands in {item.block or 'the block'}, in front of no attention or MLP that was recognised; where= swaps it"
            )
        if item.place == "per head":
            return "normalises queries or keys of each head"
        if item.place == "inside":
            what = "attention (keys and values at lower resolution)" if item.site == "attn" else "the MLP (its hidden channels)"
            return f"stands inside {what}"
        if item.place == "embedding":
            return "part of the patch embedding: no attention has split its channels into heads yet"
        if item.place == "merging":
            return "part of downsampling: its channels are those of neighbours side by side, not of heads"
        if not self.has_blocks:
            return "no attention found in the model, so no heads"
        if self.position[item.path] > self.last_in_block:
            return "behind the last block: it prepares the class token or the average for the classifier"
        if self.position[item.path] < self.first_in_block:
            return "in front of the first block"
        return "between stages, outside the blocks"

    def _heads(self, item: LocatedNorm) -> tuple[int, str, bool]:
        """(heads, remark, whether they are the model's own)."""
        given = self.plan.norm_options.get("heads")
        if given is not None:
            return int(given), "", True
        if not self.norm_class.uses_heads:
            return item.heads if item.heads and item.old.dim % item.heads == 0 else 1, "", True
        if item.heads is None:
            return 1, "no attention beside it: heads=1 if it is swapped", False
        if item.old.dim % item.heads:
            return (
                1,
                f"{item.old.dim} channels cannot be split into the {item.heads} heads of {item.attention}: heads=1 if swapped",
                False,
            )
        return item.heads, f"{item.heads} heads of {item.attention}", True


def _correct_by_calls(item: LocatedNorm, calls: list[tracing.Call]) -> None:
    """Correct what only a run shows: a norm inside an attention that stands in front of it, or one with an unusual name."""
    if not calls:
        return
    if item.place == "inside" and item.block and all(call.front_of for call in calls):
        item.place = "block"
    elif item.place == "block" and item.site == "other" and calls[0].next in ("attn", "mlp"):
        item.site = "attn" if calls[0].next == "attn" else "mlp"
    elif item.place == "block" and item.site == "mlp" and calls[0].next == "norm":
        item.site = "other"  # named like the MLP's, but another norm runs before the MLP does
