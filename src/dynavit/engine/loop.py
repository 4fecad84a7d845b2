"""The training loop: a story in chapters. What happens in each lives in the files beside.

Step k of a run is step k % steps of epoch k // steps. It depends on the weights, the optimiser's state, the samples of that
step and random numbers seeded by (seed, step, rank, micro-batch): so a checkpoint holds no random state and no position in the
data, and a run that was killed goes on as if nothing had happened.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.batch import Batch
from ..common.ended import EndedError
from ..common.json_lines import json_lines
from ..runs.directory import RunDirectory
from .checkpoint import Checkpoints
from .compiling import Compiled
from .config import TrainPlan
from .contract import Loader, Task
from .evaluate import evaluate
from .interrupt import Interrupt, LeftUndoneError
from .log import Log, module_scalars
from .processes import Processes, whole_parameters
from .progress import Progress
from .trainer import Trainer


@dataclass(frozen=True)
class Summary:
    """The end of a run.

    Attributes:
        steps: done in all.
        directory: of the run.
        best: {"value", "step", "weights"} of the best validation, None without one.
        nothing_to_do: the run had been finished before.
    """

    steps: int
    best: dict[str, Any] | None
    directory: Path
    nothing_to_do: bool = False


def train(
    task: Task,
    train: Loader,
    val: Loader | None,
    plan: TrainPlan,
    run: RunDirectory,
    *,
    processes: Processes,
    resume: bool = False,
    progress: Progress | None = None,
    depends_on: Mapping[str, Any] | None = None,
) -> Summary:
    """Train the task as planned and leave metrics and checkpoints in the run's directory.

    `resume` goes on from the newest good checkpoint, or from the start if there is none; give the same task, loaders and plan.
    SIGINT and SIGTERM write a checkpoint first. Global random number generators are reseeded all the time. Every checkpoint
    carries `depends_on`, the options and the like that it is to be resumed with.
    """
    progress = progress if processes.is_main and progress is not None else Progress()
    engine, total = plan.engine, round(plan.epochs * train.steps)
    if total < 1:
        raise ValueError(f"{plan.epochs} epochs of {train.steps} steps leave nothing to train; raise --epochs")

    # ---- Where to begin
    if resume and (before := run.finished()) is not None:
        if before["steps"] != total:
            raise ValueError(f"the run in {run.path} was finished after {before['steps']} steps; {total} would need a new run")
        progress.note(f"the run in {run.path} is finished, nothing to do")
        return Summary(before["steps"], before["best"], run.path, nothing_to_do=True)
    trainer = Trainer(task, plan, train.steps, total, processes)
    checkpoints = Checkpoints(run.checkpoints, depends_on)
    if resume:
        trainer.resume(checkpoints, progress.note)
        if trainer.step:
            progress.note(f"going on after step {trainer.step} of {total}, epoch {trainer.step / train.steps:.4g}")
    log = Log(run, trainer.step, trainer.log_size, engine.tensorboard) if processes.is_main else None
    # Each note is written once in a run. The log, cut back to the checkpoint, knows which ones were.
    lines = json_lines(run.metrics_file) if log is not None else ()
    told = {str(line.get("text")) for line in lines if line is not None and line.get("kind") == "note"}
    broken: list[str] = []  # messages of this process that are still to be told

    def record(kind: str, **values: Any) -> None:
        line = {"kind": kind, "step": trainer.step, "epoch": trainer.step / train.steps, **values}
        if log is not None:
            log.write(line)
        if kind == "note":
            progress.note(values["text"])
        elif kind != "scalars":
            progress.logged(line)

    def note(text: str) -> None:
        if text not in told:
            told.add(text)
            record("note", text=text)

    def tell_broken() -> None:
        for message in processes.join(broken):
            note(message)
        broken.clear()

    if log is not None and log.problem is not None:
        note(log.problem)
    compiled = Compiled(task.model, engine.compile, note)

    def validate(weights: str, interrupt: Interrupt) -> None:
        assert val is not None
        stopped = lambda: interrupt.signal is not None  # noqa: E731
        results = compiled.attempt(evaluate, task, val, processes, note, leave=stopped, at=progress.evaluating)
        record("eval", split="val", weights=weights, **results, time={"seconds": trainer.clock.seconds()})
        if weights == ("model" if trainer.ema is None else "ema"):
            trainer.keep_best(results, weights)

    lines_before_validation = trainer.log_size

    def validate_all(interrupt: Interrupt) -> None:
        """With the weights and their average. A signal ends it between two batches; after --resume it begins again."""
        nonlocal lines_before_validation
        lines_before_validation, trainer.to_validate = log.size if log is not None else 0, True
        try:
            with trainer.clock.paused():
                validate("model", interrupt)
                if trainer.ema is not None:
                    with trainer.ema.applied():
                        validate("ema", interrupt)
            trainer.to_validate = False
        except LeftUndoneError:
            return

    def save() -> None:
        tell_broken()  # they are not part of a checkpoint
        written = log.force_to_disk() if log is not None else 0
        snapshot = trainer.snapshot(lines_before_validation if trainer.to_validate else written)
        if processes.is_main:
            checkpoints.save(snapshot)
            if trainer.is_best:
                checkpoints.mark_best()
        processes.barrier()

    def keep(interrupt: Interrupt, *, due: bool, asking: bool) -> None:
        """Write a checkpoint where one is due, or a signal came, and in that case stop."""
        # Processes have to agree to stop, and asking costs a message, so several ask only now and then.
        stop = trainer.to_validate or (asking and processes.any(interrupt.signal is not None))
        if due or stop or trainer.is_best:
            with trainer.clock.paused():
                save()
        if stop:
            where = "in the validation " if trainer.to_validate else ""
            progress.note(f"stopped by a signal {where}after step {trainer.step}; a checkpoint is written, go on with --resume")
            interrupt.deliver()

    # ---- Steps
    progress.metrics, progress.steps_per_epoch = task.metrics, train.steps
    progress.begin(trainer.step, total)
    try:
        with Interrupt(speaks=processes.is_main) as interrupt, trainer.deferred_statistics():
            if trainer.to_validate:  # the session before was stopped there
                validate_all(interrupt)
                keep(interrupt, due=True, asking=processes.world == 1)
            for batches in steps(train, trainer.step, total):
                compiled.attempt(trainer.gradients, batches)
                trainer.update(batches, compiled)
                done, epoch_ends = trainer.step, trainer.step % train.steps == 0
                progress.loss = trainer.means["loss"]
                progress.step(done)
                broken += (message for batch in batches for message in batch.broken)

                # ---- What is known after this step
                for text in task.events():
                    note(text)
                log_due = done % engine.log_every == 0 or done == total
                if processes.world == 1 or log_due:
                    tell_broken()
                if log_due:
                    record("train", **trainer.take_window())
                if done == total or (done % engine.scalars_every == 0 if engine.scalars_every else epoch_ends):
                    with whole_parameters(task.model):
                        if values := module_scalars(task):
                            record("scalars", values=values)
                if val is not None and (done == total or (epoch_ends and done // train.steps % engine.eval_every == 0)):
                    validate_all(interrupt)

                # ---- What is kept of it
                due = done % engine.checkpoint_every == 0 if engine.checkpoint_every else epoch_ends
                ends = task.ends is not None
                keep(interrupt, due=due or ends or done == total, asking=processes.world == 1 or log_due)
                if ends:
                    raise EndedError(f"ended after step {done} of {total}, with a checkpoint: {task.ends}")

        # ---- The end
        if processes.is_main:
            run.mark_finished({"steps": total, "best": trainer.best})
        processes.barrier()
        return Summary(total, trainer.best, run.path)
    finally:
        compiled.undo()
        progress.end()
        if log is not None:
            log.close()


def steps(loader: Loader, first: int, total: int) -> Iterator[list[Batch]]:
    """The micro-batches of steps first, first + 1, ..., total - 1 of a run."""
    step = first
    while step < total:
        epoch, start = divmod(step, loader.steps)
        batches_left = min(total - step, loader.steps - start)
        iterator = loader.epoch(epoch, start)
        for _, batches in zip(range(batches_left), iterator, strict=False):
            yield batches
            step += 1
            batches_left -= 1
        if batches_left:
            raise ValueError(
                f"the loader promised {loader.steps} steps in an epoch, but epoch {epoch} ended at {step % loader.steps}"
            )
