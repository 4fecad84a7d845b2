"""Freed memory stays with the process. Each case has a process of its own, which it changes for good."""

import os
import subprocess
import sys

import pytest

import dynavit
from dynavit.data.config import DataConfig
from dynavit.engine.memory import OF_THE_USER, keep_freed_memory

# New pages of the last 20 of 30 blocks that are wanted one after the other, about 11,000 of them in a block if all are new.
FAULTS = """
import ctypes, resource
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # no huge pages (PR_SET_THP_DISABLE), so that they can be counted
import torch
from dynavit.engine.memory import keep_freed_memory
print(keep_freed_memory() if {keep} else None)
for number in range(30):
    if number == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(48 * 2**20 if number % 2 else 40 * 2**20, dtype=torch.uint8).fill_(1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
glibc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's")


def faults(keep, **environment):
    clean = {name: value for name, value in os.environ.items() if name not in (*OF_THE_USER, "LD_PRELOAD")}
    code = FAULTS.format(keep=keep)
    ran = subprocess.run([sys.executable, "-c", code], env=clean | environment, capture_output=True, text=True, check=True)
    said, count = ran.stdout.split()
    return said, int(count)


@glibc
def test_blocks_that_were_freed_come_without_new_pages():
    (kept, with_it), (_, without) = faults(keep=True), faults(keep=False)
    assert kept == "True"
    assert with_it < 0.1 * without


@glibc
def test_the_users_own_setting_stays():
    assert faults(keep=True, MALLOC_TRIM_THRESHOLD_="1000000")[0] == "False"


def test_training_on_a_cpu_keeps_it(monkeypatch, tmp_path):
    called = []
    monkeypatch.setattr("dynavit.engine.trainer.keep_freed_memory", lambda: called.append(1))
    few = DataConfig(limit=64, val_limit=10, test_limit=10)
    dynavit.train_run(dynavit.TrainConfig(epochs=1, loading=few), tmp_path / "run")
    assert called


def test_other_c_libraries_are_left_alone(monkeypatch):
    class Without:
        def __init__(self, name):
            pass

    for name in OF_THE_USER:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("ctypes.CDLL", Without)
    assert keep_freed_memory() is False
