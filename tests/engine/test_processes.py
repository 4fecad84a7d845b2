"""One process, or two that share the work and give the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from dynavit.engine import processes
from dynavit.engine.checkpoint import read_checkpoint
from dynavit.engine.config import EngineConfig
from dynavit.engine.log import read_log
from dynavit.engine.processes import Processes, repeated_blocks

TESTS = Path(__file__).parents[1]


def test_blocks_are_the_repeated_layers_with_parameters():
    def block():
        return nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))

    model = nn.ModuleDict(
        {
            "stem": nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Linear(2, 2), nn.ReLU()),
            "stages": nn.ModuleList([nn.Sequential(block(), block()), nn.Identity()]),
            "head": nn.Linear(2, 2),
        }
    )
    assert repeated_blocks(model) == list(model["stages"][0])


def test_one_process_places_a_task_as_asked():
    alone = Processes(EngineConfig(device="cpu", precision="float64"))
    assert (alone.rank, alone.world, alone.is_main, alone.sharded) == (0, 1, True, False)
    task = nn.Linear(2, 2)
    assert alone.place(task) is task and task.weight.dtype == torch.float64
    totals = {"a": torch.ones(2)}
    assert alone.combine({**totals, "b": [1]}) == {**totals, "b": [1]}
    assert alone.sum(totals) is totals and alone.any(True) and not alone.any(False) and alone.join(["a"]) == ["a"]


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="the device 'xpu' cannot be used here"):
        Processes(EngineConfig(device="xpu"))


def test_fp16_with_shards_is_refused(monkeypatch):
    class Two:
        process_index, num_processes, device = 0, 2, torch.device("cpu")

        def __init__(self, cpu):
            pass

    monkeypatch.setattr(processes, "PartialState", Two)
    with pytest.raises(ValueError, match="fp16 needs a loss scale .* use bf16 or ddp"):
        Processes(EngineConfig(precision="fp16", parallel="fsdp"))


def launch(count, out, mode, algorithm, stop=-1):
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={count}", "--standalone"] if count > 1 else []
    command = [sys.executable, *launcher, str(TESTS / "engine" / "two_processes.py"), str(out), mode, str(stop), algorithm]
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def assert_close_runs(run, reference):
    one, two = (read_checkpoint(path / "checkpoints" / "last") for path in (run, reference))
    for name, tensor in two.model.items():
        if name == "1.mean":  # each process averages its own samples there
            continue
        torch.testing.assert_close(one.model[name], tensor, rtol=0, atol=1e-12)
        torch.testing.assert_close(one.ema[name], two.ema[name], rtol=0, atol=1e-12)
    assert one.state["optimiser"].keys() == two.state["optimiser"].keys()
    for name, values in two.state["optimiser"].items():
        for key, value in values.items():
            torch.testing.assert_close(one.state["optimiser"][name][key], value, rtol=0, atol=1e-12)
    for a, b in zip(read_log(run / "metrics.jsonl"), read_log(reference / "metrics.jsonl"), strict=True):
        for name in ("kind", "step", "samples", "text", "broken"):
            assert a.get(name) == b.get(name)
        for name in ("loss", "grad_norm", "top1"):
            assert a.get(name, 0.0) == pytest.approx(b.get(name, 0.0), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["adamw", "muon"])
def test_two_processes_equal_one_and_each_goes_on_for_the_other(tmp_path, algorithm):
    done = launch(1, tmp_path / "one", "ddp", algorithm)
    assert done.returncode == 0, done.stderr
    notes = [line["text"] for line in read_log(tmp_path / "one" / "metrics.jsonl") if line["kind"] == "note"]
    assert notes == ["a", "of validation", "b"]
    for mode, kind in (("ddp", "Parameter"), ("fsdp", "DTensor")):
        done = launch(2, tmp_path / mode, mode, algorithm)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == [kind]
        assert_close_runs(tmp_path / mode, tmp_path / "one")
    # Begun sharded, continued by copies, finished alone.
    relay = tmp_path / "relay"
    assert launch(2, relay, "fsdp", algorithm, stop=4).returncode != 0
    assert launch(2, relay, "ddp", algorithm, stop=7).returncode != 0
    done = launch(1, relay, "ddp", algorithm)
    assert done.returncode == 0, done.stderr
    assert_close_runs(relay, tmp_path / "one")
    # And begun alone, finished sharded.
    back = tmp_path / "back"
    assert launch(1, back, "ddp", algorithm, stop=5).returncode == 7
    done = launch(2, back, "fsdp", algorithm)
    assert done.returncode == 0, done.stderr
    assert_close_runs(back, tmp_path / "one")
