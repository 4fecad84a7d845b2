"""One of the processes of test_ddp.py: `python ddp_worker.py rank world directory`.

A file of its own, started as a program, so that the processes neither inherit pytest's state nor need to import a test.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dynavit.norms import create_norm, list_norms
from dynavit.norms.factory import norm_class_of
from dynavit.norms.statistics.smoothed import SmoothedNorm

NAMES = [name for name in list_norms() if issubclass(norm_class_of(name), SmoothedNorm)]
# A few steps have to show more than the warm-up.
OPTIONS = {"power": {"warmup": 2}, "un": {"warmup": 2, "window": 2}, "minmax": {"extrema": "batch"}}
DIM, STEPS = 8, 3
SHARES = ([0, 1, 2], [3, 4])  # samples of each process: unequal numbers of samples, and of tokens


class Branches(nn.Module):
    """Each norm behind a linear layer, so that the norm's input gradient shows in that layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.ModuleDict({name: nn.Linear(DIM, DIM) for name in NAMES})
        self.norms = nn.ModuleDict({name: create_norm(name, DIM, heads=2, **OPTIONS.get(name, {})) for name in NAMES})
        for norm in self.norms.values():
            if hasattr(norm, "set_progress"):
                norm.set_progress(1, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return torch.stack([self.norms[name](self.before[name](x), mask=mask) for name in NAMES])


def joint_batch(step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Input, mask and cotangent of all samples."""
    noise = torch.Generator().manual_seed(step)
    x = torch.randn(5, 6, DIM, generator=noise, dtype=torch.float64) * torch.arange(1, 6)[:, None, None] + 2
    mask = torch.rand(5, 6, generator=noise) > torch.tensor([0.0, 0.2, 0.8, 0.1, 0.6])[:, None]
    return x, mask, torch.randn(len(NAMES), 5, 6, DIM, generator=noise, dtype=torch.float64)


def train(share: list[int], parallel: bool) -> dict[str, Tensor]:
    """Some steps without an optimiser: outputs, gradients and buffers of each."""
    torch.manual_seed(0)
    model = Branches().double()
    call = nn.parallel.DistributedDataParallel(model) if parallel else model
    found = {}
    for step in range(STEPS):
        x, mask, cotangent = joint_batch(step)
        call.zero_grad()
        y = call(x[share], mask[share])
        # The loss is a sum over all samples, and DDP averages over processes, as in the trainer.
        y.backward(cotangent[:, share] * (dist.get_world_size() if parallel else 1))
        found[f"{step}/y"] = y.detach()
        found |= {f"{step}/grad/{key}": p.grad.clone() for key, p in model.named_parameters()}
        found |= {f"{step}/buffer/{key}": b.clone() for key, b in model.named_buffers()}
    found["eval"] = model.eval()(x[share], mask[share]).detach()
    return found


def main() -> None:
    rank, world, directory = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    meeting_point = (directory / "meeting_point").as_uri()
    dist.init_process_group("gloo", init_method=meeting_point, rank=rank, world_size=world)
    found = train(SHARES[rank], parallel=True)
    dist.destroy_process_group()
    torch.save(found, directory / f"{rank}.pt")


if __name__ == "__main__":
    main()
