"""Whatever happens while writing, the file holds the old content or the new one."""

import json
import os
import stat
import subprocess
import sys

import pytest

from dynavit.common import files
from dynavit.common.files import replacing, write_bytes, write_json, write_text


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_round_trips(tmp_path):
    write_bytes(tmp_path / "a", b"\x00\xff")
    write_text(tmp_path / "b", "σ² ≥ 0\n")
    write_json(tmp_path / "c", {"λ": 0.5})
    assert (tmp_path / "a").read_bytes() == b"\x00\xff"
    assert (tmp_path / "b").read_text(encoding="utf-8") == "σ² ≥ 0\n"
    assert json.loads((tmp_path / "c").read_text(encoding="utf-8")) == {"λ": 0.5}
    assert names(tmp_path) == ["a", "b", "c"]


def test_missing_directories_are_made(tmp_path):
    write_text(tmp_path / "runs" / "x" / "config.yaml", "seed: 0")
    assert (tmp_path / "runs" / "x" / "config.yaml").read_text() == "seed: 0"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_while_writing_leaves_the_old_content_and_no_litter(tmp_path, error):
    target = tmp_path / "model"
    write_text(target, "old")

    def interrupted():
        with replacing(target) as temporary:
            temporary.write_text("half of the n")
            raise error

    with pytest.raises(error):
        interrupted()
    assert target.read_text() == "old"
    assert names(tmp_path) == ["model"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failing_disk_leaves_the_old_content_and_no_litter(tmp_path, monkeypatch, step):
    target = tmp_path / "model"
    write_text(target, "old")

    def full(*_):
        raise OSError("no space left on device")

    if step == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(files.Path, "replace", full)
    with pytest.raises(OSError, match="no space"):
        write_text(target, "new")
    assert target.read_text() == "old"
    assert names(tmp_path) == ["model"]


def test_what_json_cannot_hold_is_refused_before_anything_is_touched(tmp_path):
    write_json(tmp_path / "eval.json", {"top1": 0.9})
    for bad in ({"top1": float("nan")}, {"top1": object()}):
        with pytest.raises((ValueError, TypeError)):
            write_json(tmp_path / "eval.json", bad)
    assert json.loads((tmp_path / "eval.json").read_text()) == {"top1": 0.9}
    assert names(tmp_path) == ["eval.json"]


def test_a_kill_in_the_middle_leaves_the_old_content(tmp_path):
    target = tmp_path / "model"
    write_text(target, "old")
    writer = f"""
import time
from dynavit.common.files import replacing
with replacing({str(target)!r}) as temporary:
    temporary.write_text("half of the n")
    print("writing", flush=True)
    time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", writer], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "writing\n"
        process.kill()
    assert target.read_text() == "old"


def test_the_bytes_are_on_disk_before_the_name_changes(tmp_path, monkeypatch):
    order = []
    fsync, replace = os.fsync, files.Path.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append(kind(handle)), fsync(handle))[1])
    monkeypatch.setattr(files.Path, "replace", lambda self, target: (order.append("rename"), replace(self, target))[1])
    write_text(tmp_path / "model", "new")
    assert order == ["file", "rename", "directory"]


def kind(handle):
    return "directory" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file"


def test_a_link_stays_a_link(tmp_path):
    write_text(tmp_path / "real", "old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_others_may_read_what_the_umask_lets_them(tmp_path):
    write_text(tmp_path / "ours", "")
    (tmp_path / "plain").write_text("")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode
