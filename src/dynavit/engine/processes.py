"""Device, number format and processes. One process or many (torchrun): the loop is the same.

Ranks and the process group come from accelerate. Wrapping is torch's own: accelerate ignores its FSDP plugin on CPUs without a
word, and its precision is global state, which two trainings in one process would fight over.
"""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import PartialState  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from .config import EngineConfig
from .contract import Task
from .device import usable_device
from .task_state import own_parameters

T = TypeVar("T")

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Processes:
    """This process among all of them.

    Attributes:
        rank, world: number of this process, and how many there are.
        device: where this process computes.
        dtype: float64 if asked for, otherwise float32; that of weights and inputs.
    """

    def __init__(self, config: EngineConfig | None = None) -> None:
        self.config = config or EngineConfig()
        wanted = self.config.device
        on_cpu = wanted == "cpu" or (wanted is None and not torch.accelerator.is_available())
        _join_group(on_cpu)
        state = PartialState(cpu=on_cpu)
        self.rank, self.world = state.process_index, state.num_processes
        self.device = state.device if wanted is None or self.world > 1 else usable_device(wanted)
        self.dtype = torch.float64 if self.config.precision == "float64" else torch.float32
        if self.config.precision == "fp16" and self.sharded:
            raise ValueError("fp16 needs a loss scale that all shards agree on, which fsdp does not have; use bf16 or ddp")
        if self.config.threads is not None:
            torch.set_num_threads(self.config.threads)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def sharded(self) -> bool:
        return self.world > 1 and self.config.parallel == "fsdp"

    def place(self, task: Task) -> nn.Module:
        """Bring the task to its device and number format, spread it, and return what to call instead of it.

        All processes start from the weights of the first.
        """
        task.to(self.device)
        if self.dtype == torch.float64:
            task.double()
        if self.world == 1:
            return task
        for tensor in (*task.parameters(), *task.buffers()):
            dist.broadcast(tensor.detach(), src=0)
        if not self.sharded:
            return DistributedDataParallel(task, device_ids=None if self.device.type == "cpu" else [self.device])
        if own := own_parameters(task):
            raise ValueError(f"fsdp spreads the model alone, and the task trains {min(own)} beside it; use engine.parallel=ddp")
        for block in repeated_blocks(task.model):
            fully_shard(block)
        # Whole weights that outlive a forward pass would miss a change of the shards, such as EMA weights put in their place.
        fully_shard(task.model, reshard_after_forward=True)
        return task

    def autocast(self) -> AbstractContextManager[object]:
        half = HALF.get(self.config.precision)
        return nullcontext() if half is None else torch.autocast(self.device.type, half)

    @contextmanager
    def gradient_sync(self, placed: nn.Module, task: Task, last: bool) -> Iterator[None]:
        """Around forward and backward: processes exchange gradients only with the last micro-batch of a step."""
        if isinstance(task.model, FSDPModule):
            task.model.set_requires_gradient_sync(last)
            yield
        elif isinstance(placed, DistributedDataParallel) and not last:
            with placed.no_sync():
                yield
        else:
            yield

    def sum(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Each tensor summed over processes; all processes have the same names."""
        if self.world == 1:
            return tensors
        total = {name: tensor.to(self.device, copy=True) for name, tensor in tensors.items()}
        for name in sorted(total):
            dist.all_reduce(total[name])
        return total

    def combine(self, totals: dict[str, Any]) -> dict[str, Any]:
        """Tensors summed and lists joined over processes; all processes have the same names."""
        lists = {name: self.join(values) for name, values in totals.items() if isinstance(values, list)}
        return self.sum({name: value for name, value in totals.items() if name not in lists}) | lists

    def any(self, here: bool) -> bool:
        """Whether it is so in any process."""
        return here if self.world == 1 else bool(self.sum({"here": torch.tensor(float(here))})["here"] > 0)

    def join(self, values: list[T]) -> list[T]:
        """The values of all processes, in order of rank; texts, numbers, or other things that can be sent."""
        if self.world == 1:
            return values
        lists: list[list[T]] = [[] for _ in range(self.world)]
        dist.all_gather_object(lists, values)
        return [value for own in lists for value in own]

    def barrier(self) -> None:
        if self.world > 1:
            dist.barrier()

    def close(self) -> None:
        """Leave the group; needed once, at the end of a program with several processes."""
        if self.world > 1:
            PartialState().destroy_process_group()


def _join_group(on_cpu: bool) -> None:
    """Join the processes that torchrun started. accelerate would do it too, but not after a restart.

    torchrun keeps one key-value store over restarts. Processes of the new attempt would find addresses of the dead ones in it,
    so each attempt has its own keys.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or dist.is_initialized():
        return
    device = (None if on_cpu else torch.accelerator.current_accelerator()) or "cpu"
    store, rank, world = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(f"attempt {attempt}", store)  # type: ignore[attr-defined]
    dist.init_process_group(dist.get_default_backend_for_device(device), store=store, rank=rank, world_size=world)


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The layers a model is a stack of: children of a list or sequence whose class comes more than once in it.

    Stacks inside such a block belong to it.
    """
    blocks: list[nn.Module] = []
    for child in model.children():
        if isinstance(model, nn.ModuleList | nn.Sequential):
            counts = Counter(type(sibling) for sibling in model.children())
            if counts[type(child)] > 1 and any(True for _ in child.parameters()):
                blocks.append(child)
                continue
        blocks += repeated_blocks(child)
    return blocks


@contextmanager
def whole_parameters(model: nn.Module) -> Iterator[None]:
    """Inside, sharded layers have their whole parameters, for reports that read them."""
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in sharded:
        module.unshard()
    try:
        yield
    finally:
        for module in sharded:
            module.reshard()
