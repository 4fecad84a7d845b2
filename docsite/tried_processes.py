"""The columns that need two processes: DDP and FSDP (`fully_shard`), over gloo, one thread each.

Two steps of training, in which each process has its part of the samples, have to leave the weights, statistics and outputs that
one process reaches on all samples.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent))  # also started as a program

from tried_cell import Cell, tried
from tried_norms import DIM, make, tokens

PARTS = ([0, 1, 2], [3, 4])  # samples of each process; unequal numbers, as at the end of an epoch
ALL = [sample for part in PARTS for sample in part]
STEPS, PATIENCE = 2, 600  # seconds, for one process that waits for the other on a busy machine


def ddp(model: nn.Module) -> nn.Module:
    """DistributedDataParallel, two processes: two steps end where one process ends that has all samples."""
    return DistributedDataParallel(model)


def fsdp(model: nn.Module) -> nn.Module:
    """The same with `fully_shard`, where each process holds a part of the weights."""
    return fully_shard(model, mesh=init_device_mesh("cpu", (len(PARTS),)))


COLUMNS: dict[str, Callable[[nn.Module], nn.Module]] = {"DDP": ddp, "FSDP": fsdp}


def model_with(name: str) -> nn.Module:
    """To be built before there is a group of processes, with which a norm would share its first statistics."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(DIM, DIM), make(name)).double()


def train(model: nn.Module, samples: list[int], spread: Callable[[nn.Module], nn.Module] | None = None) -> dict[str, Tensor]:
    """Weights and statistics after some steps, and the output at evaluation. Losses are sums, as if there were one process."""
    call = model if spread is None else spread(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        x, weight = (tokens(len(ALL), seed=10 * step + part, dtype=torch.float64)[samples] for part in (1, 2))
        optimiser.zero_grad()
        # Both ways average gradients over processes.
        ((call(x) * weight).sum() * (1 if spread is None else len(PARTS))).backward()
        optimiser.step()
        for module in model.modules():
            if hasattr(module, "commit_statistics"):
                module.commit_statistics()
    found = {"output": call.eval()(tokens(2, seed=5, dtype=torch.float64)).detach()}
    for key, value in model.state_dict().items():
        found[key] = (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()
    return found


def compare(model: nn.Module, expected: dict[str, Tensor], rank: int, spread: Callable[[nn.Module], nn.Module]) -> None:
    found = train(model, PARTS[rank], spread)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


def try_in_processes(names: list[str]) -> dict[str, dict[str, Cell]]:
    """{column: {norm: cell}}, of both processes the less happy one."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-W", "ignore", __file__]
        processes = [subprocess.Popen([*words, str(rank), folder, *names], env=environment) for rank in range(len(PARTS))]
        try:
            codes = [process.wait(timeout=2 * PATIENCE) for process in processes]
        finally:
            for process in processes:  # one that waits for a dead partner would wait for ever
                process.kill()
                process.wait()
        files = [Path(folder) / f"{rank}.json" for rank in range(len(PARTS))]
        if not all(file.is_file() for file in files):  # gloo now and then aborts a process that has answered and is ending
            raise RuntimeError(f"of the processes that tried DDP and FSDP one gave no answer; they ended with codes {codes}")
        answers = [json.loads(file.read_text()) for file in files]
    return {
        column: {name: min((Cell(*answer[column][name]) for answer in answers), key=lambda cell: cell.mark) for name in names}
        for column in COLUMNS
    }


def main(rank: int, folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    models = {(column, name): model_with(name) for column in COLUMNS for name in names}
    alone = {name: train(model_with(name), ALL) for name in names}
    dist.init_process_group(
        "gloo",
        init_method=(folder / "meeting_point").as_uri(),
        rank=rank,
        world_size=len(PARTS),
        timeout=timedelta(seconds=PATIENCE),
    )
    cells = {
        column: {name: tried(partial(compare, models[column, name], alone[name], rank, spread)) for name in names}
        for column, spread in COLUMNS.items()
    }
    (folder / f"{rank}.json").write_text(json.dumps(cells))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
