"""Lines of metrics.jsonl, where they are cut, and what layers report."""

import sys
import types

import pytest
import torch
from torch import nn

from dynavit.engine.contract import Task
from dynavit.engine.log import Log, module_scalars, read_log
from dynavit.runs.directory import RunDirectory


def test_lines_after_the_checkpoint_are_cut(tmp_path):
    run = RunDirectory.create(tmp_path / "run")
    log = Log(run, 0, 0)
    log.write({"kind": "note", "step": 1, "text": "grün"})
    size = log.force_to_disk()
    log.write({"kind": "note", "step": 2, "text": "lost"})
    log.close()
    with run.metrics_file.open("ab") as file:
        file.write(b'{"kind": "tra')  # killed while writing
    assert [line["step"] for line in read_log(run.metrics_file)] == [1, 2]
    log = Log(run, 1, size)
    assert log.force_to_disk() == size
    log.write({"kind": "note", "step": 2, "text": "again"})
    log.close()
    assert [line["text"] for line in read_log(run.metrics_file)] == ["grün", "again"]


def test_a_file_that_lost_its_end_is_not_filled_with_zeros(tmp_path):
    run = RunDirectory.create(tmp_path / "run")
    run.metrics_file.write_bytes(b"{}\n")
    Log(run, 5, 1000).close()
    assert run.metrics_file.read_bytes() == b"{}\n"


def test_numbers_that_json_does_not_know_become_null(tmp_path):
    run = RunDirectory.create(tmp_path / "run")
    log = Log(run, 0, 0)
    log.write({"kind": "eval", "split": "val", "weights": "ema", "step": 1, "loss": float("nan"), "per": [1.0, float("inf")]})
    log.close()
    (line,) = read_log(run.metrics_file)
    assert line["loss"] is None and line["per"] == [1.0, None]


class Reporting(nn.Module):
    def __init__(self, **scalars):
        super().__init__()
        self.values = {name.replace("_", "."): value for name, value in scalars.items()}

    def scalars(self):
        return self.values


def test_numbered_scalars_are_lists():
    model = nn.Sequential(Reporting(a_0=1.0, a_1=2.0, b_2=3.0, c=4.0), nn.ReLU(), Reporting())
    assert module_scalars(Task(model)) == {"0": {"a": [1.0, 2.0], "b": [None, None, 3.0], "c": [4.0]}, "2": {}}


def test_scalars_do_not_track_gradients():
    class Layer(nn.Module):
        def scalars(self):
            assert not torch.is_grad_enabled()
            return {}

    assert module_scalars(Task(Layer())) == {"": {}}


def test_tensorboard_missing_is_said_clearly(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"pip install 'dynavit\[track\]'"):
        Log(RunDirectory.create(tmp_path / "run"), 0, 0, tensorboard=True)


def test_tensorboard_gets_the_numbers_and_forgets_what_was_cut(tmp_path, monkeypatch):
    calls = []

    class SummaryWriter:
        def __init__(self, directory, purge_step):
            calls.append(("open", directory, purge_step))

        def add_scalar(self, *values):
            calls.append(values)

        def close(self):
            calls.append(("close",))

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    run = RunDirectory.create(tmp_path / "run")
    log = Log(run, 7, 0, tensorboard=True)
    log.write({"kind": "train", "step": 8, "loss": 0.5, "time": {"seconds": 1.0}})
    log.write({"kind": "eval", "split": "val", "weights": "ema", "step": 8, "top1": 0.9})
    log.write({"kind": "note", "step": 8, "text": "x"})
    log.write({"kind": "scalars", "step": 8, "values": {"blocks.0.norm1": {"lambda_mean": [0.5, None, 0.25], "r": [1.0]}}})
    log.close()
    assert calls == [
        ("open", str(run.tensorboard), 8),
        ("train/loss", 0.5, 8),
        ("val_ema/top1", 0.9, 8),
        ("lambda_mean/blocks.0.norm1.0", 0.5, 8),
        ("lambda_mean/blocks.0.norm1.2", 0.25, 8),
        ("r/blocks.0.norm1", 1.0, 8),
        ("close",),
    ]
