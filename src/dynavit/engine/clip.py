"""Clipping each gradient by itself, as DINO does: a layer with a large gradient does not make the steps of others small."""

import torch
from torch import Tensor


@torch.no_grad()
def clip_each(gradients: list[Tensor], largest: float) -> None:
    """Scale every gradient whose norm exceeds `largest` to that norm; others keep their bits. In place."""
    for gradient in gradients:
        norm = torch.linalg.vector_norm(gradient)  # of a sharded gradient the norm of the whole
        gradient.mul_((largest / norm.clamp(min=largest)).to(gradient.dtype))
