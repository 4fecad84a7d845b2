"""The machine and the versions behind a result: without them a number means nothing a month later."""

import datetime
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from .device import CPU, device_name


def describe_machine(device: torch.device = CPU) -> dict[str, Any]:
    """`device` is the one that was measured."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": device_name(device),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "dynavit": version("dynavit"),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    facts = dict(part.split(":", 1) for part in lines if ":" in part)
    named = {key.strip(): value.strip() for key, value in facts.items()}
    vectors = [flag for flag in ("avx512f", "avx2", "avx") if flag in named.get("flags", "").split()]
    return f"{named.get('model name', platform.processor())} ({vectors[0] if vectors else platform.machine()})"
