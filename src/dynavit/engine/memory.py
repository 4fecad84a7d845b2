"""Memory between training steps on CPUs: the process keeps what it freed, since the next step asks for the same again.

By default glibc returns large blocks to the system at once and gets them back as new pages, which the system fills with zeros
first: 4 to 11 % of the time of a training step of a small model. Kept, they come as they are (`benchmarks/cpu_steps.py`).
"""

import ctypes
import os

# Parameters of mallopt, from malloc.h.
TRIM_THRESHOLD, MMAP_MAX = -1, -4
OF_THE_USER = ("GLIBC_TUNABLES", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def keep_freed_memory() -> bool:
    """Whether freed memory is kept from now on: on Linux with glibc, unless the environment says how memory is managed."""
    if any(name in os.environ for name in OF_THE_USER):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or Windows
        return False
    return bool(mallopt(MMAP_MAX, 0) and mallopt(TRIM_THRESHOLD, -1))
