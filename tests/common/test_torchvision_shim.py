"""Each case in its own interpreter: operators once declared to torch stay declared."""

import os
import subprocess
import sys

import pytest

# A torchvision that does at import what the real one does, and fails like it when its library was not loaded.
BROKEN = """
import torch
from . import sub
@torch.library.register_fake("torchvision::nms")
def meta(dets, scores, iou_threshold): return dets
"""
SOUND = "import torch\n"
ANOTHER_FAULT = "raise RuntimeError('the disk is on fire')\n"


def python(code, tmp_path, torchvision=None):
    if torchvision is not None:
        (tmp_path / "torchvision").mkdir()
        (tmp_path / "torchvision" / "__init__.py").write_text(torchvision)
        (tmp_path / "torchvision" / "sub.py").write_text("")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)


TWICE = """
from dynavit.common.torchvision_shim import ensure_torchvision
print(ensure_torchvision(), ensure_torchvision())
import torchvision
"""


def test_the_fault_is_real_and_is_repaired(tmp_path):
    assert "torchvision::nms does not exist" in python("import torchvision", tmp_path, BROKEN).stderr
    done = python(TWICE, tmp_path)
    assert done.stdout == "shimmed shimmed\n", done.stderr


def test_it_helps_also_after_a_failed_import(tmp_path):
    before = "try:\n    import torchvision\nexcept RuntimeError: pass\nelse: raise SystemExit('it was sound')\n"
    done = python(before + TWICE, tmp_path, BROKEN)
    assert done.stdout == "shimmed shimmed\n", done.stderr


def test_a_sound_torchvision_is_imported_as_it_is(tmp_path):
    assert python(TWICE, tmp_path, SOUND).stdout == "native native\n"


def test_other_faults_are_not_hidden(tmp_path):
    assert "the disk is on fire" in python(TWICE, tmp_path, ANOTHER_FAULT).stderr


@pytest.mark.slow
def test_with_the_installed_torchvision_timm_builds_a_model(tmp_path):
    code = """
from dynavit.common.torchvision_shim import ensure_torchvision
assert ensure_torchvision() in ("native", "shimmed")
import timm
from torchvision.transforms import v2
print(timm.create_model("test_vit").num_classes)
"""
    done = python(code, tmp_path)
    assert done.stdout == "1000\n", done.stderr


def test_the_declared_operators_have_no_code_behind_them(tmp_path):
    code = (
        TWICE
        + """
import torch
for name in ("nms", "qnms"):
    try:
        getattr(torch.ops.torchvision, name)(torch.zeros(1, 4), torch.zeros(1), 0.5)
    except NotImplementedError:
        print(name, "refused")
"""
    )
    assert python(code, tmp_path, BROKEN).stdout.endswith("nms refused\nqnms refused\n")
