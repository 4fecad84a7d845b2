"""A LayerNorm that stands beside another norm N in a mixture: y = share * N(x) + LN(x), its own share in its gain and bias."""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor


class Beside(NamedTuple):
    """LayerNorm with gain `weight` (c) and `bias` (c), and the `share` () of the norm that it stands beside."""

    share: Tensor
    weight: Tensor
    bias: Tensor | None
    eps: float

    def added_to(self, y: Tensor, x: Tensor) -> Tensor:
        """y + LN(x)."""
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps).add_(y)  # no derivative reads its result

    def joined_bias(self, bias: Tensor | None) -> Tensor | None:
        """The biases of both."""
        if bias is None or self.bias is None:
            return self.bias if bias is None else bias
        return bias + self.bias
