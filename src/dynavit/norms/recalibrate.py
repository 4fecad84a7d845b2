"""Exact statistics for weights that never saw a training step, such as averaged ones."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from .smoothed import SmoothedNorm


@torch.no_grad()
def recalibrate(
    model: nn.Module, loader: Iterable[Any], batches: int | None = 200, call: Callable[[nn.Module, Any], Any] | None = None
) -> nn.Module:
    """Replace the smoothed statistics of a model's norms by exact ones over at most `batches` batches; the model, in eval, is
    returned.

    While it looks, norms use the statistics of each batch, as in training, and everything else works as at evaluation.

    Args:
        loader: batches of images, or tuples and lists that begin with them.
        call: `call(model, batch)` runs the model on a batch of another kind.
    """
    norms = [module for module in model.modules() if isinstance(module, SmoothedNorm)]
    if not norms:
        raise ValueError("recalibrate: this model has no norm with smoothed statistics, so there is nothing to recompute")
    model.eval()
    for norm in norms:
        norm.begin_recalibration()
    seen, finished = 0, False
    try:
        for batch in islice(loader, batches):
            call(model, batch) if call is not None else model(_images(batch, model))
            seen += 1
        if not seen:
            raise ValueError("recalibrate: the loader gave no batch, so there is nothing to compute statistics from")
        finished = True
    finally:
        for norm in norms:
            norm.end_recalibration(keep=finished)
    return model


def _images(batch: Any, model: nn.Module) -> Tensor:
    images = batch if isinstance(batch, Tensor) else batch[0]
    like = next((tensor for tensor in model.parameters()), images)
    return images.to(like.device)
