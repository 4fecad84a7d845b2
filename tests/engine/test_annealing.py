"""A run with an annealed norm: it ends annealed, tells how far it is, and can be stopped in the middle."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dynavit.common.batch import Batch
from dynavit.engine.checkpoint import read_checkpoint
from dynavit.engine.config import EmaConfig, EngineConfig, TrainPlan
from dynavit.engine.log import read_log
from dynavit.engine.loop import train
from dynavit.engine.processes import Processes
from dynavit.norms import create_norm, list_norms
from dynavit.norms.annealed import AnnealedNorm
from dynavit.norms.factory import norm_class_of
from dynavit.runs.directory import RunDirectory
from engine.test_resume import assert_same_run
from engine.tiny import CLASSES, FEATURES, TinyLoader, TinyTask, eval_loader

STEPS = 10  # 2.5 epochs of 4
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    name: (name, {"warmup": 0.2, "anneal": 0.5}) for name in list_norms() if issubclass(norm_class_of(name), AnnealedNorm)
}
CASES["prepbn counted"] = ("prepbn", {"warm_steps": 2, "anneal_steps": 5})
BLENDS = [1, 1, 1, 0.8, 0.6, 0.4, 0.2, 0, 0, 0]  # of each step


class Annealed(TinyTask):
    def __init__(self, norm: str, options: dict[str, Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        norm_layer = create_norm(norm, 4, **options)
        self.model = nn.Sequential(
            nn.Linear(FEATURES, 12), nn.Unflatten(1, (3, 4)), norm_layer, nn.Flatten(), nn.Dropout(0.2), nn.Linear(12, CLASSES)
        )


class Stops(TinyLoader):
    """Breaks off before a step."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[list[Batch]]:
        for number, batches in enumerate(super().epoch(epoch, start), epoch * self.steps + start):
            if number == self.at:
                raise OSError("stopped")
            yield batches


def training(directory: Path, case: str, stop: int = STEPS, resume: bool = False, task: Annealed | None = None) -> Annealed:
    """With two micro-batches in each step and a checkpoint after every fourth."""
    engine = EngineConfig(device="cpu", log_every=2, checkpoint_every=4, scalars_every=1)
    plan = TrainPlan(epochs=2.5, lr=0.03, ema=EmaConfig(decay=0.9), engine=engine)
    run = RunDirectory.create(directory, resume=resume)
    run.write_config({"lr": 0.03})
    task = task or Annealed(*CASES[case])
    train(task, Stops(stop), eval_loader(), plan, run, processes=Processes(engine), resume=resume)
    return task


@pytest.fixture(scope="module", params=CASES)
def whole(request, tmp_path_factory) -> tuple[str, Path, Annealed]:
    """A case, the directory of its uninterrupted run, and what was trained there."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    return request.param, directory, training(directory, request.param)


def test_stopped_in_the_middle_of_annealing_and_resumed(tmp_path, whole):
    case, reference, task = whole
    with pytest.raises(OSError, match="stopped"):
        training(tmp_path / "run", case, stop=5)
    stopped = read_checkpoint(tmp_path / "run" / "checkpoints" / "last")
    assert stopped.state["step"] == 4 and 0 < stopped.model["2.blend_parts"] < 2**30
    training(tmp_path / "run", case, resume=True)
    assert_same_run(tmp_path / "run", reference)
    task.model.eval()[2].affine_map()  # which refuses while something of LayerNorm is left


def test_the_share_of_layer_norm_is_logged(whole):
    case, reference, _ = whole
    lines = [line for line in read_log(reference / "metrics.jsonl") if line["kind"] == "scalars"]
    logged = [line["values"]["2"]["blend"][0] for line in lines]
    # Where steps are counted, the count has moved on when a step is logged.
    expected = [*BLENDS[1:], 0] if "counted" in case else BLENDS
    assert logged == pytest.approx(expected, abs=1e-6)


def test_averaged_weights_end_annealed_too(whole):
    assert read_checkpoint(whole[1] / "checkpoints" / "last").ema["2.blend_parts"] == 0


@pytest.mark.parametrize("stop", [3, STEPS])
def test_after_training_a_plain_loop_moves_statistics_again(tmp_path, stop):
    task = Annealed(*CASES["prepbn"])
    with pytest.raises(OSError, match="stopped") if stop < STEPS else nullcontext():
        training(tmp_path / "run", "prepbn", stop, task=task)
    norm = task.model[2]
    assert not norm.deferred and not norm.pending_weight.any()


class Trouble(Annealed):
    """The second step fails in its first attempt, or its gradients overflow in all of them."""

    def __init__(self, overflows: bool) -> None:
        super().__init__("bn", {})
        self.overflows, self.calls = overflows, 0

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        outputs = super().forward(batch)
        self.calls += 1
        if self.calls == 4 and not self.overflows:  # its second micro-batch
            raise RuntimeError("no compiler")
        if self.calls in (3, 4) and self.overflows:
            outputs["loss"].register_hook(lambda gradient: gradient * torch.inf)
        return outputs


@pytest.mark.parametrize("overflows", [False, True])
def test_statistics_are_those_of_the_steps_that_were_made(tmp_path, overflows, monkeypatch):
    """A step that is made again counts once, one that the loss scale drops does not count."""
    monkeypatch.setattr(torch, "compile", lambda forward: forward)
    engine = EngineConfig(device="cpu", compile=not overflows, precision="fp16" if overflows else "float32")
    plan = TrainPlan(epochs=0.75, lr=0.0, engine=engine)
    task = Trouble(overflows)
    train(task, TinyLoader(), None, plan, RunDirectory.create(tmp_path / "run"), processes=Processes(engine))

    expected = Annealed("bn", {})
    norm = expected.model[2]
    norm.defer_statistics()
    for step, batches in zip(range(3), TinyLoader().epoch(0), strict=False):
        for batch in batches if step != 1 or not overflows else ():
            with Processes(engine).autocast():
                expected(batch)
        norm.commit_statistics()
    assert torch.equal(task.model[2].running_mean, norm.running_mean)
    assert torch.equal(task.model[2].running_var, norm.running_var)
