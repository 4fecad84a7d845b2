"""The head of self-distillation and its prototypes, and a student that sees views of several sizes.

Caron et al., ICCV 2021, arXiv 2104.14294. Axes:  b samples, v views, c channels of the backbone, k prototypes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STD, WIDTH = 0.02, 2048
HALF = (torch.float16, torch.bfloat16)


class Prototypes(nn.Module):
    """Cosines with prototypes, each times a length: logit_k = g_k <v_k / |v_k|, z>. (..., dim) -> (..., k), no bias.

    v (k, dim) and g (k, 1) are kept apart, so that a teacher averages each of them. g stays 1 unless `trained_length`.
    """

    def __init__(self, dim: int, count: int, *, trained_length: bool = False) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.empty(count, dim))
        self.g = nn.Parameter(torch.ones(count, 1), requires_grad=trained_length)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.v, -(self.v.shape[1] ** -0.5), self.v.shape[1] ** -0.5)  # as torch's linear layers
        nn.init.ones_(self.g)

    def no_weight_decay_parameters(self) -> set[str]:
        """Lengths: decay would take them to 0, and the logits with them."""
        return {"g"}

    def forward(self, z: Tensor) -> Tensor:
        return F.linear(z, self.g * F.normalize(self.v, dim=-1))


class ProjectionHead(nn.Module):
    """Three linears with GELUs between them, the unit sphere, prototypes. (..., c) -> (..., k). No norm layers.

    Weights start with a deviation of 0.02 where the head is 2,048 wide, as in DINO, and of more where it is narrower. With
    0.02 there, what depends on the image would be so small behind three layers that a few steps of Adam on the biases drown
    it, and every image would get the same code for good.
    """

    def __init__(self, dim: int, hidden: int, bottleneck: int, prototypes: int, *, trained_length: bool = False) -> None:
        super().__init__()
        sizes = ((dim, hidden), (hidden, hidden), (hidden, bottleneck))
        first, second, third = (nn.Linear(inside, out) for inside, out in sizes)
        self.mlp = nn.Sequential(first, nn.GELU(), second, nn.GELU(), third)
        for linear in (first, second, third):
            nn.init.trunc_normal_(linear.weight, std=STD * (WIDTH / hidden) ** 0.5)
            nn.init.zeros_(linear.bias)
        self.prototypes = Prototypes(bottleneck, prototypes, trained_length=trained_length)

    def forward(self, x: Tensor) -> Tensor:
        y = self.mlp(x)
        return self.prototypes(F.normalize(y, dim=-1, eps=1e-6 if y.dtype in HALF else 1e-12))


class MultiCropStudent(nn.Module):
    """A backbone, (b, channels, height, width) -> (b, c), and a head, on views of several sizes at once.

    The loop over sizes is inside, because data parallelism must be entered once per step.
    """

    def __init__(self, backbone: nn.Module, head: ProjectionHead) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, views: list[Tensor]) -> Tensor:
        """Views, each (b, channels, its height, its width) -> logits (v, b, k) in the order of the views."""
        return self.head(features_of_views(self.backbone, views))


def features_of_views(backbone: nn.Module, views: list[Tensor]) -> Tensor:
    """(v, b, c) in the order of the views; the backbone runs once for each size, both sides of it."""
    groups: dict[tuple[int, int], list[int]] = {}
    for number, view in enumerate(views):
        groups.setdefault((view.shape[-2], view.shape[-1]), []).append(number)
    features: list[Tensor] = [torch.empty(0)] * len(views)
    for members in groups.values():
        together = backbone(torch.cat([views[number] for number in members]))
        for number, own in zip(members, together.chunk(len(members)), strict=True):
            features[number] = own
    return torch.stack(features)
