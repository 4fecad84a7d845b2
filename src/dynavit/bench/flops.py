"""Multiply-adds by torch's own counter, which needs one formula of ours: it counts CPU attention as nothing."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count


def count_macs(module: nn.Module, *inputs: Tensor) -> int:
    """Multiply-adds of one forward pass: products and convolutions; elementwise work is not counted, as in papers."""
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=_FORMULAS) as counter:
        module(*inputs)
    return int(counter.get_total_flops()) // 2


def _cpu_attention_flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


_FORMULAS = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _cpu_attention_flops}
