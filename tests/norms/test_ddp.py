"""Two processes that share a batch compute what one process computes on the whole batch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from norms.ddp_worker import NAMES, SHARES, train

WORKER = Path(__file__).with_name("ddp_worker.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[int, dict[str, torch.Tensor]]:
    """Results of each process, ranks 0 and 1, and of a lone one (-1), for which this process stands."""
    directory = tmp_path_factory.mktemp("ddp")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), "2", str(directory)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        for process in processes:
            output, _ = process.communicate(timeout=120)
            assert process.returncode == 0, output
    finally:
        for process in processes:  # one that waits for a dead partner would wait for ever
            process.kill()
            process.wait()
    alone = train([sample for share in SHARES for sample in share], parallel=False)
    return {-1: alone} | {rank: torch.load(directory / f"{rank}.pt", weights_only=True) for rank in (0, 1)}


def close(a, b) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def part(values: dict[str, torch.Tensor], kind: str, norm: str) -> dict[str, torch.Tensor]:
    chosen = {key: value for key, value in values.items() if kind in key and f".{norm}." in key}
    assert chosen
    return chosen


@pytest.mark.parametrize("kind", ["buffer", "grad"])
@pytest.mark.parametrize("norm", NAMES)
def test_statistics_and_gradients_are_those_of_the_joint_batch(found, norm, kind):
    for rank in (0, 1):
        close(part(found[rank], kind, norm), part(found[-1], kind, norm))


@pytest.mark.parametrize("key", ["0/y", "1/y", "2/y", "eval"])
def test_outputs_are_those_of_the_joint_batch(found, key):
    close(torch.cat([found[0][key], found[1][key]], dim=1), found[-1][key])
