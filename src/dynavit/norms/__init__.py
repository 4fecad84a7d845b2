"""Normalisers: one file each, one contract."""

from .bn import BatchNorm
from .contract import Norm
from .derf import Derf
from .dtn import DynamicTokenNorm
from .dtn_released import ReleasedDynamicTokenNorm
from .dyt import DyT
from .factory import _NORMS, create_norm, list_norms
from .gn import GroupNorm
from .in_ import InstanceNorm
from .ln import LayerNorm
from .power import PowerNorm
from .recalibrate import recalibrate
from .rms import RMSNorm
from .scale import ScaleNorm
from .sn import SwitchableNorm

_NORMS.update(
    {
        "ln": LayerNorm,
        "rms": RMSNorm,
        "bn": BatchNorm,
        "in": InstanceNorm,
        "gn": GroupNorm,
        "sn": SwitchableNorm,
        "scale": ScaleNorm,
        "power": PowerNorm,
        "dtn": DynamicTokenNorm,
        "dtn_released": ReleasedDynamicTokenNorm,
        "dyt": DyT,
        "derf": Derf,
    }
)

__all__ = [
    "BatchNorm",
    "Derf",
    "DyT",
    "DynamicTokenNorm",
    "GroupNorm",
    "InstanceNorm",
    "LayerNorm",
    "Norm",
    "PowerNorm",
    "RMSNorm",
    "ReleasedDynamicTokenNorm",
    "ScaleNorm",
    "SwitchableNorm",
    "create_norm",
    "list_norms",
    "recalibrate",
]
