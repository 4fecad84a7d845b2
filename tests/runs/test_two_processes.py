"""`torchrun -m dynavit train`: two processes give what one gives, and survive the death of one of them."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch
from safetensors.torch import load_file

from dynavit import TrainConfig, train_run
from dynavit.runs.config import from_plain

pytestmark = pytest.mark.slow

# 1,293 training images in batches of 100: the last batch of an epoch has 93, one process gets 47 of them and the other 46.
STEPS = {"epochs": 20 / 13, "batch_size": 100, "model_options": {"depth": 2, "norm_blocks": 2}}
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


def start(out, options, *launcher, resume=False):
    config = out.with_suffix(".yaml")
    config.write_text(json.dumps(options))  # JSON is YAML
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", *launcher]
    train = ["-m", "dynavit", "train", "--config", str(config), "--out", str(out), "--quiet"]
    words = [*torchrun, *train, *(["--resume"] if resume else [])]
    return subprocess.Popen(words, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def metrics(run, kind):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if name != "time"} for line in lines if line["kind"] == kind]


@pytest.mark.parametrize(
    ("norm", "precision", "parallel", "accumulate", "tolerance"),
    [
        ("dtn", "float32", "ddp", 1, 1e-5),
        ("bn", "float64", "ddp", 1, 1e-10),  # its statistics are those of the whole batch
        ("bn", "float64", "ddp", 2, 1e-10),  # ... or of a micro-batch of all processes
        ("un", "float64", "ddp", 2, 1e-10),
        ("dtn", "float64", "fsdp", 1, 1e-10),
    ],
)
def test_two_processes_equal_one(tmp_path, norm, precision, parallel, accumulate, tolerance):
    engine = {"precision": precision, "parallel": parallel, "device": "cpu"}
    options = {**STEPS, "norm": norm, "engine": engine, "optim": {"accumulate": accumulate}}
    two = start(tmp_path / "two", options)
    train_run(from_plain(TrainConfig, options), tmp_path / "one")
    out, _ = two.communicate(timeout=240)
    assert two.returncode == 0, out
    weights = {run: load_file(tmp_path / run / "checkpoints/last/model.safetensors") for run in ("one", "two")}
    assert weights["one"].keys() == weights["two"].keys()
    for name, tensor in weights["one"].items():
        assert torch.dist(tensor.double(), weights["two"][name].double(), float("inf")) <= tolerance, name
    for one, also in zip(metrics(tmp_path / "one", "eval"), metrics(tmp_path / "two", "eval"), strict=True):
        assert also["step"] == one["step"] and also["top1"] == one["top1"]
        assert also["loss"] == pytest.approx(one["loss"], rel=10 * tolerance)
    results = [json.loads((tmp_path / run / "eval/test.json").read_text()) for run in ("one", "two")]
    assert results[0]["samples"] == results[1]["samples"] == 360, "every sample once"
    assert results[0]["confusion"] == results[1]["confusion"]


def test_one_process_is_killed_and_the_run_goes_on(tmp_path):
    options = {**STEPS, "epochs": 6, "norm": "dtn", "engine": {"checkpoint_every": 5, "log_every": 5, "device": "cpu"}}
    run = start(tmp_path / "killed", options, "--max-restarts=2", resume=True)
    wait_for_checkpoint(tmp_path / "killed", run)
    victim = max(worker.pid for worker in psutil.Process(run.pid).children(recursive=True) if "train" in worker.cmdline())
    os.kill(victim, signal.SIGKILL)
    out, _ = run.communicate(timeout=300)
    assert run.returncode == 0, out
    train_run(from_plain(TrainConfig, options), tmp_path / "whole")
    weights = [load_file(tmp_path / name / "checkpoints/last/model.safetensors") for name in ("killed", "whole")]
    for name, tensor in weights[1].items():
        assert torch.dist(tensor, weights[0][name], float("inf")) <= 1e-4, name
    steps = [line["step"] for line in metrics(tmp_path / "killed", "train")]
    assert steps == sorted(set(steps)), "no step is logged twice"
    assert "exitcode: -9" in out, "torchrun did not notice"


def wait_for_checkpoint(run, process):
    for _ in range(1200):
        if (run / "checkpoints/last/manifest.json").is_file():
            return
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)
    raise AssertionError("no checkpoint within two minutes")
