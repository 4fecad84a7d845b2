"""Exact statistics for weights that no training step has used, such as averaged ones."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from .statistics.smoothed import SmoothedNorm

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@torch.no_grad()
def recalibrate(
    model: nn.Module, loader: Iterable[Any], batches: int | None = 200, call: Callable[[nn.Module, Any], Any] | None = None
) -> nn.Module:
    """Replace the smoothed statistics of a model's norms by exact ones over at most `batches` batches; the model, in eval, is
    returned.

    Meanwhile norms use the statistics of each batch, as in training, and everything else works as at evaluation. For torch's
    own batch norms, the result is the mean over batches of each batch's mean and variance.

    Args:
        loader: batches of images, or tuples and lists that begin with them.
        call: `call(model, batch)` runs the model on a batch of another kind.
    """
    norms = [
        module if isinstance(module, SmoothedNorm) else _TorchBatchNorm(module)
        for module in model.modules()
        if isinstance(module, SmoothedNorm) or (isinstance(module, BATCH_NORMS) and module.track_running_stats)
    ]
    if not norms:
        raise ValueError(
            "recalibrate: this model has no norm with smoothed statistics, ours or nn.BatchNorm1d, 2d, 3d, so there is nothing "
            "to recompute"
        )
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


class _TorchBatchNorm:
    """One of torch's batch norms, with the recalibration methods of ours."""

    def __init__(self, norm: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) -> None:
        self.norm, self.momentum = norm, norm.momentum
        self.before = {name: buffer.clone() for name, buffer in norm.named_buffers(recurse=False)}

    def begin_recalibration(self) -> None:
        self.norm.reset_running_stats()
        self.norm.momentum = None  # the mean over all batches
        self.norm.train()

    def end_recalibration(self, keep: bool) -> None:
        if not keep or not self.norm.num_batches_tracked:  # a norm that no batch went through
            for name, buffer in self.norm.named_buffers(recurse=False):
                buffer.copy_(self.before[name])
        self.norm.momentum = self.momentum
        self.norm.eval()


def _images(batch: Any, model: nn.Module) -> Tensor:
    images = batch if isinstance(batch, Tensor) else batch[0]
    like = next((tensor for tensor in model.parameters()), images)
    return images.to(like.device)
