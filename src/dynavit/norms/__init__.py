"""Normalisers: one file each, one contract. Importing the room registers all of them."""

from .bn import BatchNorm
from .contract import Norm
from .derf import Derf
from .dtn import DynamicTokenNorm, ReleasedDynamicTokenNorm
from .dyt import DyT
from .factory import create_norm, list_norms, register_norm
from .gn import GroupNorm
from .in_ import InstanceNorm
from .ldfn import LearnableDynamicFeatureNorm
from .ln import LayerNorm
from .minmax import MinMaxNorm
from .power import PowerNorm
from .prepbn import PRepBN
from .recalibrate import recalibrate
from .repbn import RepBN
from .rms import RMSNorm
from .scale import ScaleNorm
from .sn import SwitchableNorm
from .un import UnifiedNorm
from .zscore import ZScoreNorm

__all__ = [
    "BatchNorm",
    "Derf",
    "DyT",
    "DynamicTokenNorm",
    "GroupNorm",
    "InstanceNorm",
    "LayerNorm",
    "LearnableDynamicFeatureNorm",
    "MinMaxNorm",
    "Norm",
    "PRepBN",
    "PowerNorm",
    "RMSNorm",
    "ReleasedDynamicTokenNorm",
    "RepBN",
    "ScaleNorm",
    "SwitchableNorm",
    "UnifiedNorm",
    "ZScoreNorm",
    "create_norm",
    "list_norms",
    "recalibrate",
    "register_norm",
]
