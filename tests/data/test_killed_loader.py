"""Nobody is left of a program that was killed while its workers read files."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from PIL import Image

from dynavit.common import with_parent
from dynavit.data.readers import Reader, _Requests, _start_workers


def test_a_process_ends_itself_when_its_parent_is_gone(monkeypatch):
    gone, ended = threading.Event(), threading.Event()
    parent = type("Parent", (), {"join": lambda self: gone.wait()})()
    told = []
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: parent)
    monkeypatch.setattr(with_parent.os, "kill", lambda *who: (told.append(who), ended.set()))
    with_parent.end_with_parent(3)
    assert not ended.wait(0.05)
    gone.set()
    assert ended.wait(10) and told == [(os.getpid(), signal.SIGTERM)]


def test_readers_begin_with_that():
    loader = _start_workers(Reader(str, str, list, 0), _Requests([]), 1, pin_memory=False)
    assert loader.worker_init_fn is with_parent.end_with_parent


@pytest.mark.slow
def test_workers_of_a_killed_program_end(tmp_path):
    for name in "ab":
        (tmp_path / "train" / name).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (8, 8)).save(tmp_path / "train" / name / f"{number}.png")
    program = Path(__file__).parent / "killed_loader.py"
    with subprocess.Popen([sys.executable, program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as running:
        workers = [int(word) for word in running.stdout.readline().split()]
        running.kill()
    assert len(workers) == 2
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and any(map(alive, workers)):
        time.sleep(0.1)
    assert not any(map(alive, workers))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
