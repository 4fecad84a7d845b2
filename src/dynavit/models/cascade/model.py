"""Dynamic Vision Transformer. Wang et al., NeurIPS 2021, arXiv 2105.15075: few tokens first, more for images that need them.

    image -> exit 1 (7x7 tokens) -> sure? -> exit 2 (10x10) -> sure? -> exit 3 (14x14)

Every exit cuts the same image into its own tokens. In the second and later exits each block reuses the last tokens of the exit
before, as some more channels before its MLP, and the attention logits of all its blocks, added to its own.
Exits are counted from 1; `cascade.exits`, the tuple of logits and `Predictions.exit` are indexed from 0 like any list.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ...norms.contract import statistics_dtype
from ..conv_tokens import Grid
from ..layers import pair
from ..timm_conventions import TimmModel, new_head
from .exit import Exit
from .options import FLAT, Blocks, Reuse, Tokens
from .policy import ExitPolicy
from .state import ExitState, Predictions


class Cascade(TimmModel):
    """Classifiers of growing cost that reuse each other's work. (b, in_chans, height, width) -> one (b, num_classes) per exit.

    `cascade(images)` runs all exits, coarse to fine; `cascade.predict(images, policy)` stops as soon as the policy is
    satisfied, image by image. Below both lie `begin` and `step`, one exit at a time, on batches that may be cut and joined.

    Args:
        tokens, blocks, reuse: see `options`; `create_model` also takes them as dicts, and their fields by flat names.
        img_size: of all images; the exits' grids follow from it.
        norm, norm_options: a name of `list_norms` and its options, for the two norms of every block. The others are LayerNorm.
    """

    flat_options = tuple(FLAT)

    def __init__(
        self,
        *,
        tokens: Tokens,
        blocks: Blocks,
        reuse: Reuse,
        norm: str = "ln",
        norm_options: dict[str, Any] | None = None,
        img_size: int | Grid = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
    ) -> None:
        super().__init__()
        self.img_size, self.embed_dim, self.reuse = pair(img_size), blocks.embed_dim, reuse
        self.splits, self.global_pool = tokens.splits, "token" if tokens.pool == "token" else "avg"
        self.exits = nn.ModuleList()
        before: Grid | None = None
        depths = blocks.depths(len(tokens.splits))
        if reuse.relation and len(set(depths)) > 1:
            raise ValueError(f"Cascade: exits of different depths, {depths}, cannot reuse relations; take relation_reuse=False")
        for splits, depth in zip(tokens.splits, depths, strict=True):
            exit = Exit(
                img_size=self.img_size,
                in_chans=in_chans,
                num_classes=num_classes,
                splits=splits,
                depth=depth,
                before=before,
                tokens=tokens,
                blocks=blocks,
                reuse=reuse,
                norm=norm,
                norm_options=norm_options or {},
            )
            self.exits.append(exit)
            before = exit.grid
        stem = "attention1.kqv" if tokens.kind == "soft" else "stem.0"
        first = "exits.0.tokenizer." + (stem if len(tokens.splits[0]) > 1 else "proj")
        self.introduce(self.img_size, in_chans, num_classes, blocks.embed_dim, first_conv=first)
        self.default_cfg["classifier"] = tuple(f"exits.{at}.head" for at in range(len(self.exits)))
        self.released: dict[str, Any] = {}  # costs, accuracies and thresholds that came with released weights

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """The logits of every exit, coarse to fine."""
        state, found = self.begin(images), []
        for _ in self.exits:
            logits, state = self.step(state)
            found.append(logits)
        return tuple(found)

    def begin(self, images: Tensor) -> ExitState:
        """A batch before the first exit."""
        wanted = (self.in_chans, *self.img_size)
        if images.dim() != 4 or tuple(images.shape[1:]) != wanted:
            raise ValueError(
                f"Cascade: got images of shape {tuple(images.shape)}; it was built for (batch, {', '.join(map(str, wanted))}). "
                "Resize them, or build it with another img_size or in_chans"
            )
        return ExitState(0, images)

    def compile_exits(self, **options: Any) -> None:
        """torch.compile every exit, in place, at its next call; options are those of torch.compile.

        State and names of parameters stay as they are. docs/cascade.md says what it costs and gains.
        """
        for exit in self.exits:
            exit.compile(**options)

    def step(self, state: ExitState) -> tuple[Tensor, ExitState]:
        """Run the exit that the batch waits for: its logits (b, num_classes), and the batch on its way to the next."""
        if state.exit >= len(self.exits):
            raise ValueError(f"this batch has passed all {len(self.exits)} exits of the cascade")
        goes_on = state.exit + 1 < len(self.exits)
        logits, features, relations = self.exits[state.exit](
            state.images, state.features, state.relations, keep_relations=goes_on and self.reuse.relation
        )
        if not (goes_on and self.reuse.feature):
            features = None
        if self.reuse.detach:
            features, relations = (None if part is None else part.detach() for part in (features, relations))
        return logits, ExitState(state.exit + 1, state.images, features, relations)

    @torch.no_grad()
    def predict(self, images: Tensor, policy: ExitPolicy) -> Predictions:
        """Class, confidence and exit of each image. Only images of which the policy is not sure go on to the next exit."""
        if self.training:
            raise ValueError("Cascade.predict is for evaluation: call eval() first, or forward for training")
        policy.check_fits(len(self.exits))
        state = self.begin(images)
        waiting: Tensor | None = None  # positions of the images in the present batch; None: all
        labels = torch.zeros(len(images), dtype=torch.int64, device=images.device)
        confidence = torch.zeros(len(images), dtype=statistics_dtype(images.dtype), device=images.device)
        exits = torch.zeros_like(labels)
        while len(state):
            at = state.exit
            logits, state = self.step(state)
            sure, best = policy.confidence(logits).to(confidence.dtype), logits.argmax(-1)
            # Every image gets this exit's answer; those that go on get another.
            if waiting is None:
                labels, confidence, exits = best, sure, torch.full_like(best, at)
            else:
                labels[waiting], confidence[waiting], exits[waiting] = best, sure, at
            if at + 1 == len(self.exits):
                break
            stay = (~policy.satisfied(sure, at)).nonzero().flatten()
            if len(stay) < len(sure):  # else nothing has to be copied
                waiting, state = stay if waiting is None else waiting[stay], state[stay]
        return Predictions(labels, confidence, exits)

    def options_for_fewer_tokens(self, most: int) -> dict[str, Any]:
        """The option that leaves the last exit at most so many tokens along a side, and the others in proportion.

        The first step of every tokenizer takes larger strides. {} if there are no more already.
        """
        times = -(-max(self.exits[-1].grid) // most)  # type: ignore[arg-type]
        if times == 1:
            return {}
        return {"splits": [[[times * n for n in first], *map(list, others)] for first, *others in self.splits]}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Layers by depth, for learning rates that fall with it: block k of all exits is one layer. Parts that only a cascade
        has start fresh where exits start from other weights, so they learn as fast as heads."""
        exit = r"^exits\.\d+\."
        own = rf"{exit}(?:norm|relation_reuse|blocks\.\d+\.feature_reuse)\b"
        return {
            "stem": rf"{exit}(?:cls_token|pos_embed|tokenizer)",
            "blocks": [(own, (99999,)), (rf"{exit}blocks\.(\d+)", None)],
        }

    def get_classifier(self) -> tuple[nn.Module, ...]:
        return tuple(exit.get_submodule("head") for exit in self.exits)

    def reset_classifier(self, num_classes: int) -> None:
        """New heads for all exits."""
        self.num_classes = num_classes
        for exit in self.exits:
            exit.head = new_head(self, num_classes)
