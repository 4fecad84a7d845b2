"""timm's conventions for models, once for all of ours: the names by which its tools train, inspect and cut a model."""

from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..common.registry import nearest_match_error
from ..norms.undecayed import names_without_decay

POOLINGS = ("token", "avg", "")


class TimmModel(nn.Module):
    """Attributes in which timm looks for a model's sizes, and the parameters it does not decay."""

    num_classes: int
    num_features: int
    default_cfg: dict[str, Any]

    def introduce(
        self,
        img_size: tuple[int, int],
        in_chans: int,
        num_classes: int,
        num_features: int,
        *,
        first_conv: str,
        crop_pct: float = 0.875,
    ) -> None:
        """Tell timm's tools the model's input and its ends."""
        self.in_chans, self.num_classes = in_chans, num_classes
        self.num_features = self.head_hidden_size = num_features
        self.default_cfg = image_config(img_size, in_chans, num_classes, first_conv=first_conv, crop_pct=crop_pct)
        self.pretrained_cfg = self.default_cfg

    def no_weight_decay(self) -> set[str]:
        """Names of class tokens, of positions, and of the parameters that norms keep from weight decay."""
        bare = {name for name, _ in self.named_parameters() if name.rpartition(".")[2].startswith(("cls_token", "pos_embed"))}
        return bare | names_without_decay(self)


class Classifier(TimmModel):
    """A model that ends in a linear layer `head` on `num_features` channels."""

    head: nn.Module
    grad_checkpointing = False

    def get_classifier(self) -> Any:
        return self.head

    def reset_classifier(self, num_classes: int) -> None:
        """A new head; with 0 classes the model returns features."""
        self.num_classes = num_classes
        self.head = new_head(self, num_classes)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    def run(self, block: nn.Module, *inputs: Any) -> Tensor:
        """A block's output; with gradient checkpointing what is inside is computed again when gradients need it."""
        if self.grad_checkpointing and torch.is_grad_enabled():
            return checkpoint(block, *inputs, use_reentrant=False)
        return block(*inputs)


class ImageClassifier(Classifier):
    """A classifier of images through `forward_features`, (b, prefix + t, c), a pooling, and the head behind a dropout."""

    head_drop: nn.Module
    global_pool: str
    num_prefix_tokens: int

    def forward_features(self, image: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, image: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(image))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.head_drop(self.pool(x))
        return x if pre_logits else self.head(x)

    def pool(self, x: Tensor) -> Tensor:
        if self.global_pool == "token":
            return x[:, 0]
        return x[:, self.num_prefix_tokens :].mean(1) if self.global_pool == "avg" else x

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new head. `global_pool`: "token", "avg" (mean of patches) or "" (all tokens)."""
        if global_pool is not None:
            if global_pool not in POOLINGS:
                raise nearest_match_error("pooling", global_pool, POOLINGS)
            if global_pool == "token" and not self.num_prefix_tokens:
                raise ValueError(
                    f"{type(self).__name__}: it has no class token to pool; build it with class_token='late' or 'start'"
                )
            self.global_pool = global_pool
        super().reset_classifier(num_classes)


def new_head(model: TimmModel, num_classes: int) -> nn.Linear | nn.Identity:
    """A classifier as models start with, where the model lives; without classes nothing."""
    if not num_classes:
        return nn.Identity()
    like = next(model.parameters())
    head = nn.Linear(model.num_features, num_classes, device=like.device, dtype=like.dtype)
    nn.init.trunc_normal_(head.weight, std=0.02)
    nn.init.zeros_(head.bias)
    return head


def image_config(
    img_size: tuple[int, int], in_chans: int, num_classes: int, *, first_conv: str, crop_pct: float = 0.875
) -> dict[str, Any]:
    """timm's description of a model: its input, and where its ends are."""
    colour = in_chans == 3
    return {
        "url": "",
        "input_size": (in_chans, *img_size),
        "num_classes": num_classes,
        "pool_size": None,
        "crop_pct": crop_pct,
        "interpolation": "bicubic",
        "mean": IMAGENET_DEFAULT_MEAN if colour else (0.5,) * in_chans,
        "std": IMAGENET_DEFAULT_STD if colour else (0.5,) * in_chans,
        "first_conv": first_conv,
        "classifier": "head",
    }
