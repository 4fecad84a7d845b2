"""Memory with guards: a kernel that reads beside a tensor gets NaN, and one that writes there is found out."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

MARGIN = 4096  # more than the numbers of any tile's row


class Guards:
    def __init__(self) -> None:
        self.blocks: list[tuple[Tensor, int]] = []

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """NaN (a mask: True) in the tensor itself and on both sides of it."""
        count, poison = math.prod(shape), 1 if dtype in (torch.uint8, torch.bool) else math.nan
        block = torch.full((count + 2 * MARGIN,), poison, dtype=dtype)
        self.blocks.append((block, count))
        return block[MARGIN : MARGIN + count].view(shape)

    def copy(self, tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else self.tensor(tuple(tensor.shape), tensor.dtype).copy_(tensor)

    def untouched(self) -> bool:
        sides = [side for block, count in self.blocks for side in (block[:MARGIN], block[MARGIN + count :])]
        return all(bool(side.isnan().all()) if side.is_floating_point() else bool((side == 1).all()) for side in sides)

    @contextmanager
    def around_new_tensors(self) -> Iterator[None]:
        """Everything that `new_empty` and `empty_like` make is poisoned and guarded."""
        plain = torch.Tensor.new_empty

        def new_empty(tensor: Tensor, *shape: int, **options: object) -> Tensor:
            if options or len(shape) == 0 or not all(isinstance(n, int) for n in shape) or math.prod(shape) == 0:
                return plain(tensor, *shape, **options)
            return self.tensor(shape, tensor.dtype)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.Tensor, "new_empty", new_empty)
            patch.setattr(torch, "empty_like", lambda tensor: self.tensor(tuple(tensor.shape), tensor.dtype))
            yield
