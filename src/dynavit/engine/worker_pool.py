"""Jobs in several processes at once, each process taking the next one, with word of how far they are.

Nothing is undone when it ends early, by an error or by Ctrl-C: jobs write their results themselves.
"""

import multiprocessing
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch

from ..common.plugins import load_plugin, loaded_plugins
from ..common.with_parent import end_with_parent


class WorkerDied(ValueError):
    """A process was killed, probably out of memory, and took the others with it."""


def run_jobs(
    work: Callable[..., Any],
    jobs: Mapping[str, tuple[Any, ...]],
    processes: int,
    *,
    heard: Callable[[Any], None],
    finished: Callable[[str, Any], None],
) -> None:
    """`work(*arguments)` for each job, `processes` at a time, which share this one's threads. `heard` gets what jobs `say`,
    `finished` the name and the result of each that is done. The first error ends all of them."""
    context = multiprocessing.get_context("spawn")  # forking a process that has used torch's threads can hang
    queue = context.SimpleQueue()
    threads = max(torch.get_num_threads() // processes, 1)

    def hear() -> None:
        while not queue.empty():
            heard(queue.get())

    with ProcessPoolExecutor(processes, context, _begin, (queue, threads, loaded_plugins())) as pool:
        futures = {pool.submit(work, *arguments): name for name, arguments in jobs.items()}
        waiting = set(futures)
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                hear()
                for future in done:
                    finished(futures[future], future.result())
        except BrokenProcessPool as error:
            raise WorkerDied(
                "a process died, probably out of memory; what was finished is kept: try again with fewer "
                '--processes. A script that starts processes needs `if __name__ == "__main__":` around its work'
            ) from error
        except BaseException:
            for worker in list((pool._processes or {}).values()):
                worker.terminate()  # a run in training writes a checkpoint then
            pool.shutdown(cancel_futures=True)
            raise


_queue: Any = None


def say(news: Any) -> None:
    """From a job to the process that waits for it."""
    _queue.put(news)


def _begin(queue: Any, threads: int, plugins: list[Path]) -> None:
    global _queue
    _queue = queue
    torch.set_num_threads(threads)
    for file in plugins:  # before the first job, which may hold classes of these files
        load_plugin(file)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches everybody; the first process ends the others
    end_with_parent()
