"""Faults have an interpreter each: operators once declared to torch stay declared."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dynavit
from dynavit.common import torchvision_shim

# A torchvision that does at import what the real one does, and fails like it when its library was not loaded.
BROKEN = """
import torch
from . import sub
@torch.library.register_fake("torchvision::nms")
def meta(dets, scores, iou_threshold): return dets
"""
SOUND = "import torch\n"
SOURCE = Path(dynavit.__file__).parents[1]  # this checkout, whichever one is installed
ANOTHER_FAULT = "raise RuntimeError('the disk is on fire')\n"


def python(code, tmp_path, torchvision=None):
    if torchvision is not None:
        (tmp_path / "torchvision").mkdir()
        (tmp_path / "torchvision" / "__init__.py").write_text(torchvision)
        (tmp_path / "torchvision" / "sub.py").write_text("")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(SOURCE)])}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)


TWICE = """
from dynavit.common.torchvision_shim import ensure_torchvision
print(ensure_torchvision(), ensure_torchvision())
import torchvision
"""


REFUSED = """
import torch
for name in ("nms", "qnms"):
    try:
        getattr(torch.ops.torchvision, name)(torch.zeros(1, 4), torch.zeros(1), 0.5)
    except NotImplementedError:
        print(name, "refused")
"""


def test_a_fault_is_repaired_by_operators_without_code(tmp_path):
    done = python(TWICE + REFUSED, tmp_path, BROKEN)
    assert done.stdout == "shimmed shimmed\nnms refused\nqnms refused\n", done.stderr


def test_the_fault_is_real_and_is_repaired_also_after_it(tmp_path):
    before = "try:\n    import torchvision\nexcept RuntimeError as fault: print(fault)\n"
    fault, repaired = python(before + TWICE, tmp_path, BROKEN).stdout.splitlines()
    assert "torchvision::nms does not exist" in fault and repaired == "shimmed shimmed"


def test_import_dynavit_first_is_enough(tmp_path):
    """As README and docs have it: somebody else imports torchvision, timm for instance, and nothing was called before."""
    code = "import sys, dynavit\nassert 'torch' not in sys.modules\nimport torchvision.sub\nprint(torchvision.meta.__name__)"
    done = python(code, tmp_path, BROKEN)
    assert done.stdout == "meta\n", done.stderr


def test_a_sound_torchvision_is_imported_as_it_is(tmp_path, monkeypatch):
    assert ensure_fresh(tmp_path, monkeypatch, SOUND) == "native"


def test_other_faults_are_not_hidden(tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match="the disk is on fire"):
        ensure_fresh(tmp_path, monkeypatch, ANOTHER_FAULT)


def ensure_fresh(tmp_path, monkeypatch, torchvision):
    """`ensure_torchvision` of this process, which has imported no torchvision and finds this one: nothing is declared."""
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(torchvision)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torchvision_shim, "_declared", set())
    with monkeypatch.context() as patch:
        patch.setattr(sys, "modules", {k: v for k, v in sys.modules.items() if k.partition(".")[0] != "torchvision"})
        return torchvision_shim.ensure_torchvision()


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
