"""A run that was killed and resumed ends like one that was not: bit for bit, at every moment."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dynavit.engine.checkpoint import MODEL, read_checkpoint
from dynavit.engine.log import read_log

TESTS = Path(__file__).parents[1]
PYTHONPATH = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
ENVIRONMENT = {**os.environ, "PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}


def killing(*arguments):
    command = [sys.executable, "-W", "error", str(TESTS / "engine" / "killing.py"), *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)


def without_clock(value):
    """The size of the log depends on how many digits the times in it have."""
    return {name: item for name, item in value.items() if name not in ("time", "clock", "log_size")}


def assert_same(value, other, where):
    if isinstance(value, torch.Tensor):
        assert value.dtype == other.dtype and torch.equal(value, other), where
    elif isinstance(value, dict):
        assert value.keys() == other.keys(), where
        for name in value:
            assert_same(value[name], other[name], f"{where}.{name}")
    else:
        assert value == other, where


def assert_same_run(run: Path, reference: Path):
    entries = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert entries == ["best", "last", "previous"], "remains of an interrupted save"
    for name in entries:
        one, two = (read_checkpoint(path / "checkpoints" / name) for path in (run, reference))
        if name == "previous" and one.state["step"] != two.state["step"]:
            continue  # after a kill in the last moments only one checkpoint was written since
        assert_same(one.model, two.model, f"{name}.model")
        assert_same(one.ema, two.ema, f"{name}.ema")
        assert_same(without_clock(one.state), without_clock(two.state), f"{name}.state")
    one, two = ([without_clock(line) for line in read_log(path / "metrics.jsonl")] for path in (run, reference))
    assert one == two
    assert (run / "finished.json").read_bytes() == (reference / "finished.json").read_bytes()
    assert sorted(path.name for path in run.glob("[!.]*")) == ["checkpoints", "config.yaml", "finished.json", "metrics.jsonl"]


def kill_and_resume(out, every):
    done = killing(out, every)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    for moment in report:
        # The second kill needs a checkpoint that is still to be written; near the end there is none.
        assert moment["killed"][0] == signal.SIGKILL, f"{moment} never came"
        assert moment["resumed"] == 0, f"{moment}: {done.stderr[-2000:]}"
    return report


def check_moments(out, report):
    for moment in report:
        try:
            assert_same_run(out / moment["directory"], out / "reference")
        except AssertionError as error:
            raise AssertionError(f"killed at {moment['directory']}: {error}") from error


@pytest.fixture(scope="module")
def some_moments(tmp_path_factory):
    out = tmp_path_factory.mktemp("killed")
    return out, kill_and_resume(out, every=16)


def test_killed_at_some_moments(some_moments):
    out, report = some_moments
    check_moments(out, report)
    assert len(report) >= 20
    kinds = {moment["directory"].split("-")[1] for moment in report}
    assert kinds == {"fsync", "rename", "replace", "link", "unlink", "rmdir", "save", "save_file", "line", "step"}
    assert sum(signal.SIGKILL in moment["killed"][1:] for moment in report) >= 3


def test_the_comparison_can_fail(some_moments):
    """Weights that differ in one bit are not the same."""
    reference = some_moments[0] / "reference"
    other = read_checkpoint(reference / "checkpoints" / "last").model
    changed = {name: tensor.clone() for name, tensor in other.items()}
    changed["0.weight"].view(torch.int32)[0, 0] ^= 1
    with pytest.raises(AssertionError, match=r"0\.weight"):
        assert_same(changed, other, MODEL)


@pytest.mark.slow
def test_killed_at_every_moment(tmp_path):
    report = kill_and_resume(tmp_path, every=1)
    check_moments(tmp_path, report)
    assert len(report) > 200


@pytest.mark.slow
def test_killed_in_a_fresh_interpreter(tmp_path):
    assert killing("one", tmp_path / "reference", -1).returncode == 0
    for step in (1, 4, 7):
        run = tmp_path / str(step)
        assert killing("one", run, step).returncode == -signal.SIGKILL
        resumed = killing("one", run, -1)
        assert resumed.returncode == 0, resumed.stderr
        assert_same_run(run, tmp_path / "reference")
