"""Jobs for worker processes, which find them by their module's name."""

import os
import time
from pathlib import Path

import torch

from dynavit.engine.worker_pool import say


def write(file: Path) -> str:
    say((file.name, torch.get_num_threads()))
    file.write_text(str(os.getpid()))
    return f"done {file.name}"


def fail(file: Path) -> None:
    raise ValueError(f"cannot write {file.name}")


def die(file: Path) -> None:
    os._exit(9)


def sleep(file: Path) -> None:
    file.write_text("")
    time.sleep(600)
