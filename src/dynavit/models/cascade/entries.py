"""Cascades by name: those of the paper, and small ones."""

from typing import Any

from ..registry import register_model
from .model import Cascade
from .options import Blocks, Reuse, Tokens, cascade_options

THEN = ((3, 2, 1), (3, 2, 1))  # the second and third soft split of every T2T-ViT
T2T_SPLITS = (((14, 8, 3), *THEN), ((11, 6, 5), *THEN), ((7, 4, 2), *THEN))  # 224 pixels -> 7x7, 10x10, 14x14 tokens
CONV_SPLITS = (((32, 32, 0),), ((23, 23, 3),), ((16, 16, 0),))  # the same grids

DVT_SIZES = {
    "dvt_t2t_vit_12": (Tokens(T2T_SPLITS), Blocks(256, 12, 4, 2.0)),
    "dvt_t2t_vit_14": (Tokens(T2T_SPLITS), Blocks(384, 14, 6, 3.0)),
    "dvt_deit_small": (Tokens(CONV_SPLITS, positions="learned"), Blocks(384, 12, 6, 4.0, qkv_bias=True, eps=1e-6)),
}


@register_model(task="early_exit")
def dvt_t2t_vit_12(**kwargs: Any) -> Cascade:
    """DVT on T2T-ViT-12: 7x7, 10x10 and 14x14 tokens of 224-pixel images."""
    return _released_size("dvt_t2t_vit_12", kwargs)


@register_model(task="early_exit")
def dvt_t2t_vit_14(**kwargs: Any) -> Cascade:
    """DVT on T2T-ViT-14: 7x7, 10x10 and 14x14 tokens of 224-pixel images."""
    return _released_size("dvt_t2t_vit_14", kwargs)


@register_model(task="early_exit")
def dvt_deit_small(**kwargs: Any) -> Cascade:
    """DVT on DeiT-S: 7x7, 10x10 and 14x14 patches of 224-pixel images."""
    return _released_size("dvt_deit_small", kwargs)


@register_model(task="early_exit")
def dvt_deit_tiny(**kwargs: Any) -> Cascade:
    """A cascade on DeiT-Ti, to be fine-tuned from its weights: 7x7, 10x10 and 14x14 patches of 224-pixel images."""
    blocks = Blocks(192, 12, 3, 4.0, qkv_bias=True, eps=1e-6)
    return Cascade(**cascade_options(kwargs, tokens=Tokens(CONV_SPLITS, positions="learned"), blocks=blocks, reuse=Reuse()))


def _released_size(name: str, given: dict[str, Any]) -> Cascade:
    tokens, blocks = DVT_SIZES[name]
    return Cascade(**cascade_options(given, tokens=tokens, blocks=blocks, reuse=Reuse()))


@register_model(task="early_exit")
def dvt_vit_micro(**kwargs: Any) -> Cascade:
    """A cascade for small photographs: 4x4 and 8x8 tokens of 32-pixel images, 4 blocks of 64 channels; features are reused.

    Two convolutions make the tokens: in a short training few tokens of linear patches lag far behind. Relations are not reused:
    in so small a model they take a fifth of the time. An exit's loss does not reach the exits before it: both learn faster so.
    """
    splits = (((3, 2, 1), (6, 4, 1)), ((3, 2, 1), (3, 2, 1)))
    options = cascade_options(
        kwargs,
        tokens=Tokens(splits, "conv", width=32, positions="learned"),
        blocks=Blocks(64, 4, 4, 4.0),
        reuse=Reuse(relation=False, hidden=32, width=16, detach=True),
        img_size=32,
        num_classes=10,
    )
    return Cascade(**options)


@register_model(task="early_exit")
def dvt_vit_mini(**kwargs: Any) -> Cascade:
    """A cascade for small photographs: 4x4 tokens in 2 blocks, then 8x8 tokens in 4 behind the stem of the recipe `cifar10`.

    The first exit has 0.19 of the products, most of them in convolutions on 8x8 pixels. Exits answer from the mean of their
    patches; the class token is one more that these may look at. Nothing is reused, see docs/results/cascade.md.
    """
    splits = (((6, 4, 1), (3, 1, 1), (3, 1, 1), (3, 2, 1), (1, 1, 0)), ((3, 2, 1), (3, 1, 1), (3, 2, 1), (3, 1, 1), (1, 1, 0)))
    options = cascade_options(
        kwargs,
        tokens=Tokens(splits, "conv", norm="bn", positions="learned", pool="mean"),
        blocks=Blocks(96, (2, 4), 4, 2.0),
        reuse=Reuse(feature=False, relation=False, hidden=32, width=16, detach=True),
        img_size=32,
        num_classes=10,
    )
    return Cascade(**options)


@register_model(task="early_exit")
def dvt_vit_digits(**kwargs: Any) -> Cascade:
    """A cascade for tiny images: 2x2 and 4x4 patches of 8-pixel images, 3 blocks of 48 channels."""
    options = cascade_options(
        kwargs,
        tokens=Tokens((((4, 4, 0),), ((2, 2, 0),)), positions="learned"),
        blocks=Blocks(48, 3, 4, 2.0),
        reuse=Reuse(hidden=24, width=12),
        img_size=8,
        num_classes=10,
    )
    return Cascade(**options)
