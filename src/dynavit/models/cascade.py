"""Dynamic Vision Transformer. Wang et al., NeurIPS 2021, arXiv 2105.15075: few tokens first, more for images that need them.

    image -> exit 0 (7x7 tokens) -> sure? -> exit 1 (10x10) -> sure? -> exit 2 (14x14)

Every exit cuts the same image into its own tokens. From the second on, each block reuses the tokens that left the exit before,
as some more channels before its MLP, and the attention logits of all its blocks, added to its own.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..norms.contract import statistics_dtype
from .conv_tokens import Grid, Split
from .exit import Exit
from .exit_policy import ExitPolicy
from .exit_state import ExitState, Predictions
from .layers import image_config, make_head, names_without_decay, pair
from .registry import register_model


class Cascade(nn.Module):
    """Classifiers of growing cost that reuse each other's work. (b, in_chans, height, width) -> one (b, num_classes) per exit.

    `cascade(images)` runs all exits, coarse to fine; `cascade.predict(images, policy)` stops as soon as the policy is
    satisfied, image by image. Below both lie `begin` and `step`, one exit at a time, on batches that may be cut and joined.

    Args:
        splits: for each exit (kernel, stride, padding) of its tokenizer. One of them is a convolution.
        tokens: what several are: "soft" splits of T2T-ViT with a performer after each but the last, or "conv"olutions.
        img_size: of all images; the exits' grids follow from it.
        positions: fixed "sinusoid" over the sequence, or "learned".
        eps: of every norm but the tokenizers'.
        feature_reuse, relation_reuse: whether exits after the first get tokens and attention logits of the one before.
        feature_hidden, feature_width: of the small MLP in each block that turns the earlier exit's tokens into
            `feature_width` channels. The norm before the block's MLP sees these and the token's own together. A norm with
            heads needs a multiple of the heads: each head gets an equal share beside its own channels.
        detach: gradients of an exit's loss end at what it reuses, instead of reaching the exits before it.
        norm, norm_options: a name of `list_norms` and its options, for the two norms of every block. The others are LayerNorm.
        token_width: channels between several splits.
        token_drop_rate: of the performers.
        drop_path_rate: stochastic depth of the last block of each exit.
    """

    def __init__(
        self,
        *,
        splits: Sequence[Sequence[Split]],
        tokens: Literal["soft", "conv"] = "soft",
        img_size: int | Grid = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        embed_dim: int = 256,
        depth: int = 12,
        heads: int = 4,
        mlp_ratio: float = 2.0,
        qkv_bias: bool = False,
        positions: Literal["sinusoid", "learned"] = "sinusoid",
        eps: float = 1e-5,
        feature_reuse: bool = True,
        relation_reuse: bool = True,
        feature_hidden: int = 128,
        feature_width: int = 48,
        detach: bool = False,
        norm: str = "ln",
        norm_options: dict[str, Any] | None = None,
        token_width: int = 64,
        token_drop_rate: float = 0.1,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        if not splits or not all(splits):
            raise ValueError(f"Cascade: each exit needs the splits of its tokenizer; got {splits}")
        self.img_size, self.in_chans, self.num_classes = pair(img_size), in_chans, num_classes
        self.embed_dim = self.num_features = self.head_hidden_size = embed_dim
        self.feature_reuse, self.relation_reuse, self.detach = feature_reuse, relation_reuse, detach
        self.exits = nn.ModuleList()
        before: Grid | None = None
        for own in splits:
            exit = Exit(
                img_size=self.img_size,
                in_chans=in_chans,
                num_classes=num_classes,
                splits=own,
                tokens=tokens,
                before=before,
                embed_dim=embed_dim,
                depth=depth,
                heads=heads,
                mlp_ratio=mlp_ratio,
                qkv_bias=qkv_bias,
                positions=positions,
                eps=eps,
                feature_reuse=feature_reuse,
                relation_reuse=relation_reuse,
                feature_hidden=feature_hidden,
                feature_width=feature_width,
                norm=norm,
                norm_options=norm_options or {},
                token_width=token_width,
                token_drop_rate=token_drop_rate,
                drop_path_rate=drop_path_rate,
            )
            self.exits.append(exit)
            before = exit.grid
        stem = "attention1.kqv" if tokens == "soft" else "stem.0"
        first = "exits.0.tokenizer." + (stem if len(splits[0]) > 1 else "proj")
        self.default_cfg = image_config(self.img_size, in_chans, num_classes, first_conv=first)
        self.default_cfg["classifier"] = tuple(f"exits.{at}.head" for at in range(len(splits)))
        self.pretrained_cfg = self.default_cfg
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

    def step(self, state: ExitState) -> tuple[Tensor, ExitState]:
        """Run the exit that the batch waits for: its logits (b, num_classes), and the batch on its way to the next."""
        if state.exit >= len(self.exits):
            raise ValueError(f"this batch has passed all {len(self.exits)} exits of the cascade")
        goes_on = state.exit + 1 < len(self.exits)
        logits, features, relations = self.exits[state.exit](
            state.images, state.features, state.relations, keep_relations=goes_on and self.relation_reuse
        )
        if not (goes_on and self.feature_reuse):
            features = None
        if self.detach:
            features, relations = (None if part is None else part.detach() for part in (features, relations))
        return logits, ExitState(state.exit + 1, state.images, features, relations)

    @torch.no_grad()
    def predict(self, images: Tensor, policy: ExitPolicy) -> Predictions:
        """Class, confidence and exit of each image. Only images of which the policy is not sure go on to the next exit."""
        if self.training:
            raise ValueError("Cascade.predict is for evaluation: call eval() first, or forward for training")
        policy.check_fits(len(self.exits))
        state = self.begin(images)
        waiting: Tensor | None = None  # the images that the batch under way consists of; None: all
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

    # What timm's tools call.

    def get_classifier(self) -> tuple[nn.Module, ...]:
        return tuple(self.get_submodule(path) for path in self.default_cfg["classifier"])

    def reset_classifier(self, num_classes: int) -> None:
        """New heads for all exits."""
        self.num_classes = num_classes
        for path in self.default_cfg["classifier"]:
            like = self.get_parameter(path.replace("head", "cls_token"))
            self.set_submodule(path, make_head(self.embed_dim, num_classes, like))

    def no_weight_decay(self) -> set[str]:
        ends = (".cls_token", ".pos_embed")
        return {name for name, _ in self.named_parameters() if name.endswith(ends)} | names_without_decay(self)


THEN = ((3, 2, 1), (3, 2, 1))  # the second and third soft split of every T2T-ViT
T2T_SPLITS = (((14, 8, 3), *THEN), ((11, 6, 5), *THEN), ((7, 4, 2), *THEN))  # 224 pixels -> 7x7, 10x10, 14x14 tokens
CONV_SPLITS = (((32, 32, 0),), ((23, 23, 3),), ((16, 16, 0),))  # the same grids

DVT_SIZES: dict[str, dict[str, Any]] = {
    "dvt_t2t_vit_12": {"splits": T2T_SPLITS, "embed_dim": 256, "depth": 12, "heads": 4, "mlp_ratio": 2.0},
    "dvt_t2t_vit_14": {"splits": T2T_SPLITS, "embed_dim": 384, "depth": 14, "heads": 6, "mlp_ratio": 3.0},
    "dvt_deit_small": {"splits": CONV_SPLITS, "embed_dim": 384, "depth": 12, "heads": 6, "mlp_ratio": 4.0}
    | {"qkv_bias": True, "positions": "learned", "eps": 1e-6},
}


@register_model
def dvt_t2t_vit_12(**kwargs: Any) -> Cascade:
    """DVT on T2T-ViT-12: 7x7, 10x10 and 14x14 tokens of 224-pixel images."""
    return Cascade(**{**DVT_SIZES["dvt_t2t_vit_12"], **kwargs})


@register_model
def dvt_t2t_vit_14(**kwargs: Any) -> Cascade:
    """DVT on T2T-ViT-14: 7x7, 10x10 and 14x14 tokens of 224-pixel images."""
    return Cascade(**{**DVT_SIZES["dvt_t2t_vit_14"], **kwargs})


@register_model
def dvt_deit_small(**kwargs: Any) -> Cascade:
    """DVT on DeiT-S: 7x7, 10x10 and 14x14 patches of 224-pixel images."""
    return Cascade(**{**DVT_SIZES["dvt_deit_small"], **kwargs})


@register_model
def dvt_vit_micro(**kwargs: Any) -> Cascade:
    """A cascade for small photographs: 4x4 and 8x8 tokens of 32-pixel images, 4 blocks of 64 channels; features are reused.

    Two convolutions make the tokens: in a short training few tokens of linear patches lag far behind. Relations are not reused:
    in so small a model they take a fifth of the time. An exit's loss does not reach the exits before it: both learn faster so.
    """
    small = {"img_size": 32, "num_classes": 10, "embed_dim": 64, "depth": 4, "heads": 4, "mlp_ratio": 4.0}
    reuse = {"feature_hidden": 32, "feature_width": 16, "relation_reuse": False, "detach": True, "positions": "learned"}
    splits = (((3, 2, 1), (6, 4, 1)), ((3, 2, 1), (3, 2, 1)))
    return Cascade(**{**small, **reuse, "splits": splits, "tokens": "conv", "token_width": 32, **kwargs})


@register_model
def dvt_vit_digits(**kwargs: Any) -> Cascade:
    """A cascade for tiny images: 2x2 and 4x4 patches of 8-pixel images, 3 blocks of 48 channels."""
    small = {"img_size": 8, "num_classes": 10, "embed_dim": 48, "depth": 3, "heads": 4, "mlp_ratio": 2.0}
    reuse = {"feature_hidden": 24, "feature_width": 12, "positions": "learned"}
    return Cascade(**{**small, **reuse, "splits": (((4, 4, 0),), ((2, 2, 0),)), **kwargs})
