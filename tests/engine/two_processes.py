"""A training for one or several processes: a program of its own, run by test_processes.py.

[torchrun ...] two_processes.py OUT ddp|fsdp STOP ALGORITHM     fails at step STOP (-1: never), resumes if OUT exists
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from dynavit.common.batch import Batch
from dynavit.engine.config import EmaConfig, EngineConfig, OptimConfig, TrainPlan
from dynavit.engine.loop import train
from dynavit.engine.processes import Processes
from dynavit.runs.directory import RunDirectory
from engine.tiny import TinyLoader, TinyTask, eval_loader


class Stopping(TinyLoader):
    stop = -1

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[list[Batch]]:
        for number, batches in enumerate(super().epoch(epoch, start), start):
            if epoch * self.steps + number == self.stop:
                raise SystemExit(7)
            yield batches


def main(out: Path, mode: str, stop: int, algorithm: str) -> None:
    engine = EngineConfig(device="cpu", parallel=mode, precision="float64", log_every=2, checkpoint_every=3)
    plan = TrainPlan(epochs=2, lr=0.01, optim=OptimConfig(algorithm=algorithm), ema=EmaConfig(decay=0.9), engine=engine)
    processes = Processes(engine)
    resume = out.exists()
    processes.barrier()
    if processes.is_main:
        RunDirectory.create(out, resume=resume).write_config({})
    processes.barrier()
    # 25 samples in batches of 8: the last one leaves a process without any. The second starts with other weights and gets
    # those of the first.
    place = {"rank": processes.rank, "world": processes.world}
    loader = Stopping(samples=25, **place)
    loader.stop = stop
    task = TinyTask(dropout=0.0, annealed=False, seed=processes.rank)
    # After even steps, where several processes write: one alone writes at once.
    val, loader.broken = eval_loader(**place), {(0, 1): "a", (1, 1): "a", (1, 3): "b"}
    val.broken = {(0, 0): "of validation"}
    train(task, loader, val, plan, RunDirectory(out), processes=processes, resume=resume)
    if processes.is_main:
        print(json.dumps(sorted({type(parameter).__name__ for parameter in task.model.parameters()})))
    processes.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
