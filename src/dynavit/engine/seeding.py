"""Random numbers that need no stored state: each micro-batch of each step starts its own."""

import hashlib
import random

import numpy as np
import torch


def seed_everything(*keys: int) -> None:
    """Seed torch (every device), NumPy and `random` from several numbers, say (seed, step, rank, micro-batch).

    What a step draws, for dropout and drop path, then depends on these numbers only, so a resumed run draws the same.
    """
    digest = hashlib.blake2b(repr(keys).encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "little") >> 1
    torch.manual_seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)
    random.seed(seed)
