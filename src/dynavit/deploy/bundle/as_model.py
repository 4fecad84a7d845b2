"""A bundle as a torch module."""

import torch
from torch import Tensor, nn

from .runner import Bundle


class BundleModel(nn.Module):
    """(b, c, h, w) -> logits (b, classes), of a cascade a tuple of them. Without parameters and gradients, on the CPU."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__()
        self.bundle = bundle
        if len(bundle.parts) > 1:  # what tells a cascade from a classifier
            self.exits = nn.ModuleList(nn.Identity() for _ in bundle.parts)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        found = tuple(map(torch.from_numpy, self.bundle.exits(images.detach().cpu().numpy())))
        return found if len(found) > 1 else found[0]
