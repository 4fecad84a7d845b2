"""What the loop does, in which order, and that its steps are the mathematics they should be."""

import json
import os
import signal
import time

import pytest
import torch

from dynavit.engine.checkpoint import read_checkpoint
from dynavit.engine.config import EmaConfig, EngineConfig, OptimConfig, TrainPlan
from dynavit.engine.evaluate import evaluate
from dynavit.engine.finite import NonFiniteError
from dynavit.engine.log import read_log
from dynavit.engine.loop import steps, train
from dynavit.engine.processes import Processes
from dynavit.engine.progress import Progress
from dynavit.engine.schedule import lr_at
from dynavit.runs.directory import RunDirectory
from engine.tiny import TinyLoader, TinyTask, eval_loader


def plan(epochs=2.0, lr=0.01, optim=None, ema=0.0, **engine):
    engine = EngineConfig(**{"device": "cpu", "log_every": 3, **engine})
    return TrainPlan(epochs=epochs, lr=lr, optim=optim or OptimConfig(), ema=EmaConfig(decay=ema), engine=engine)


class Recorder(Progress):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def run_training(tmp_path, plan, task=None, loader=None, val="default", resume=False, progress=None):
    run = RunDirectory.create(tmp_path / "run", resume=resume)
    task = task or TinyTask()
    val = eval_loader() if val == "default" else val
    processes = Processes(plan.engine)
    summary = train(task, loader or TinyLoader(), val, plan, run, processes=processes, resume=resume, progress=progress)
    return run, task, summary


def test_steps_equal_the_formulas_in_float64(tmp_path):
    """Weighted micro-batches, clipping, AdamW, the schedule and the average, written out plainly."""
    optim = OptimConfig(weight_decay=0.1, clip=0.5, warmup_epochs=0.5, min_lr=0.1)
    plan_ = plan(epochs=2.5, lr=0.02, optim=optim, ema=0.7, precision="float64")
    loader = TinyLoader(samples=29, batch_size=8, accumulate=3)
    _, task, _ = run_training(tmp_path, plan_, TinyTask(dropout=0.0, annealed=False), loader)

    reference = TinyTask(dropout=0.0, annealed=False).double()
    w = dict(reference.model.named_parameters())
    m = {name: torch.zeros_like(p) for name, p in w.items()}
    v = {name: torch.zeros_like(p) for name, p in w.items()}
    average = {name: p.detach().clone() for name, p in w.items()}
    total = 10
    for step in range(total):
        epoch, number = divmod(step, 4)
        batches = list(loader.epoch(epoch))[number]
        x, y = torch.cat([b.inputs[: b.count] for b in batches]).double(), torch.cat([b.targets[: b.count] for b in batches])
        reference.zero_grad()
        torch.nn.functional.cross_entropy(reference.model(x), y).backward()
        norm = torch.sqrt(sum((p.grad**2).sum() for p in w.values()))
        lr = lr_at(step, total, 2, 0.02, 0.1)
        with torch.no_grad():
            for name, p in w.items():
                g = p.grad * min(1.0, 0.5 / (float(norm) + 1e-6))
                m[name] = 0.9 * m[name] + 0.1 * g
                v[name] = 0.999 * v[name] + 0.001 * g**2
                decay = 0.1 if name in ("0.weight", "4.weight") else 0.0
                t = step + 1
                p -= lr * decay * p + lr * (m[name] / (1 - 0.9**t)) / ((v[name] / (1 - 0.999**t)).sqrt() + 1e-8)
                d = min(0.7, (1 + step) / (10 + step))
                average[name] = d * average[name] + (1 - d) * p
    for name, p in task.model.named_parameters():
        assert p.dtype == torch.float64
        torch.testing.assert_close(p, w[name], rtol=1e-10, atol=1e-12)
    stored = read_checkpoint(tmp_path / "run" / "checkpoints" / "last")
    for name, tensor in average.items():
        torch.testing.assert_close(stored.ema[name], tensor.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("batch_size", [8, 29])
def test_accumulation_changes_memory_not_results(tmp_path, batch_size):
    weights = []
    for accumulate in (1, 2, 5):
        loader = TinyLoader(batch_size=batch_size, accumulate=accumulate)
        task = TinyTask(dropout=0.0, annealed=False)
        run_training(tmp_path / str(accumulate), plan(precision="float64"), task, loader)
        weights.append(torch.cat([p.detach().flatten() for p in task.model.parameters()]))
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(weights[2], weights[0], rtol=1e-10, atol=1e-12)


def test_lines_of_metrics(tmp_path):
    run, _, summary = run_training(tmp_path, plan(epochs=2.25, ema=0.9, scalars_every=4))
    lines = read_log(run.metrics_file)
    order = [(line["kind"], line["step"], line.get("weights")) for line in lines]
    assert order == [
        ("train", 3, None),
        ("scalars", 4, None),
        ("eval", 4, "model"),
        ("eval", 4, "ema"),
        ("train", 6, None),
        ("scalars", 8, None),
        ("eval", 8, "model"),
        ("eval", 8, "ema"),
        ("train", 9, None),
        ("scalars", 9, None),
        ("eval", 9, "model"),
        ("eval", 9, "ema"),
    ]
    assert lines[0].keys() == {"kind", "step", "epoch", "loss", "lr", "grad_norm", "confidence", "time"}
    assert lines[0]["time"].keys() == {"seconds", "training_seconds", "images_per_second"}
    assert lines[4]["epoch"] == 1.5 and lines[4]["lr"] == lr_at(5, 9, 4, 0.01, 0.01)
    assert lines[2].keys() == {"kind", "step", "epoch", "split", "weights", "loss", "top1", "samples", "time"}
    assert lines[2]["samples"] == [21.0] and lines[2]["split"] == "val"
    assert lines[1]["values"]["1"]["commits"] == [4.0] and len(lines[1]["values"]["1"]["scale"]) == 2
    tops = [line["top1"] for line in lines if line.get("weights") == "ema"]
    assert summary.best["value"] == max(tops) and summary.best["weights"] == "ema" and summary.steps == 9
    assert json.loads((run.path / "finished.json").read_text()) == {"steps": 9, "best": summary.best}


def test_logged_means_are_over_samples(tmp_path):
    """Without learning, the mean loss of an epoch is the loss of its samples: a small last batch weighs what it should."""
    loader = TinyLoader(samples=29, batch_size=29, accumulate=3)
    task = TinyTask(dropout=0.0, annealed=False)
    run, _, _ = run_training(tmp_path, plan(epochs=1, lr=0.0, log_every=1, precision="float64"), task, loader)
    (batches,) = loader.epoch(0)
    losses = [task(batch.to("cpu", torch.float64))["loss"].item() * batch.count for batch in batches]
    assert read_log(run.metrics_file)[0]["loss"] == pytest.approx(sum(losses) / 29, rel=1e-12)


def test_events_of_a_step_come_in_order(tmp_path):
    events = []
    task = TinyTask()
    tracker = task.model[1]
    names = ("set_progress", "commit_statistics")
    for name, method in {name: getattr(tracker, name) for name in names}.items():
        setattr(tracker, name, lambda *a, name=name, method=method: (events.append((name, *a)), method(*a)))
    tracker.register_forward_pre_hook(lambda module, _: events.append("forward" if module.training else "evaluated"))
    task.model[0].weight.register_hook(lambda _: events.append("backward"))
    run_training(tmp_path, plan(epochs=0.5), task, TinyLoader(accumulate=2))
    step = ["forward", "backward"] * 2 + [("commit_statistics",)]
    assert events == [("set_progress", 0, 2), *step, ("set_progress", 1, 2), *step, *["evaluated"] * 3]
    assert task.training


def test_evaluation_restores_every_mode_and_draws_nothing():
    task = TinyTask()
    task.train()
    task.model[3].eval()  # a layer that somebody froze
    before = torch.get_rng_state()
    results = evaluate(task, eval_loader(), Processes(EngineConfig(device="cpu")))
    assert torch.equal(torch.get_rng_state(), before)
    assert task.model[1].training and not task.model[3].training
    inputs = torch.cat([batch.inputs for (batch,) in eval_loader().epoch()])
    targets = torch.cat([batch.targets for (batch,) in eval_loader().epoch()])
    task.eval()
    assert results["loss"] == pytest.approx(torch.nn.functional.cross_entropy(task.model(inputs), targets).item(), rel=1e-6)
    assert results["samples"] == [21.0]


def test_the_best_checkpoint_is_the_best_also_between_regular_ones(tmp_path):
    run, _, summary = run_training(tmp_path, plan(epochs=5, lr=0.05, checkpoint_every=7))
    tops = {line["step"]: line["top1"] for line in read_log(run.metrics_file) if line["kind"] == "eval"}
    first_best = min(step for step, top in tops.items() if top == max(tops.values()))
    assert summary.best["step"] == first_best
    assert read_checkpoint(run.checkpoints / "best").state["step"] == first_best
    assert read_checkpoint(run.checkpoints / "last").state["step"] == 20


def test_evaluations_only_when_asked_but_always_at_the_end(tmp_path):
    run, _, _ = run_training(tmp_path, plan(epochs=5.5, eval_every=2))
    assert [line["step"] for line in read_log(run.metrics_file) if line["kind"] == "eval"] == [8, 16, 22]


def test_without_validation(tmp_path):
    run, _, summary = run_training(tmp_path, plan(), val=None)
    assert summary.best is None and not (run.checkpoints / "best").exists()
    assert all(line["kind"] != "eval" for line in read_log(run.metrics_file))


def test_resuming_a_finished_run_does_nothing_and_says_so(tmp_path):
    run, _, first = run_training(tmp_path, plan())
    before, progress = run.metrics_file.read_bytes(), Recorder()
    _, _, again = run_training(tmp_path, plan(), resume=True, progress=progress)
    assert again.nothing_to_do and again.best == first.best and "finished, nothing to do" in progress.notes[0]
    assert run.metrics_file.read_bytes() == before
    with pytest.raises(ValueError, match="finished after 8 steps; 12 would need a new run"):
        run_training(tmp_path, plan(epochs=3), resume=True)


class StopAt(TinyLoader):
    """Does something when a certain step of the run is asked for."""

    def __init__(self, step, action, **options):
        super().__init__(**options)
        self.stop, self.action = step, action

    def epoch(self, epoch=0, start=0):
        for number, batches in enumerate(super().epoch(epoch, start), start):
            if epoch * self.steps + number == self.stop:
                self.action()
            yield batches


def fail():
    raise RuntimeError("lost")


@pytest.mark.parametrize("change", ["model", "batch_size", "epochs", "ema"])
def test_a_checkpoint_of_another_training_is_refused(tmp_path, change):
    with pytest.raises(RuntimeError, match="lost"):
        run_training(tmp_path, plan(), loader=StopAt(6, fail))
    task = TinyTask(width=9) if change == "model" else TinyTask()
    loader = TinyLoader(batch_size=10) if change == "batch_size" else TinyLoader()
    other = plan(epochs=3 if change == "epochs" else 2, ema=0.9 if change == "ema" else 0.0)
    said = {
        "model": "of another model: 0.bias is .8,. there and .9,. here",
        "batch_size": "has total=8, this run has 6",
        "epochs": "has total=8, this run has 12",
        "ema": "resume with the same ema.decay",
    }
    with pytest.raises(ValueError, match=said[change]):
        run_training(tmp_path, other, task, loader, resume=True)


def test_state_that_an_earlier_version_did_not_store_starts_afresh(tmp_path):
    """The layer names it; anything else that is missing stays an error."""

    def newer(declared=True):
        task = TinyTask()
        task.model[1].register_buffer("count", torch.zeros((), dtype=torch.int64))
        task.model[1].newer_state = ("count",) if declared else ()
        return task

    with pytest.raises(ZeroDivisionError):
        run_training(tmp_path, plan(ema=0.9), loader=StopAt(5, lambda: 1 // 0))
    with pytest.raises(ValueError, match=r"of another model: 1\.count is absent there and \(\) here"):
        run_training(tmp_path, plan(ema=0.9), newer(declared=False), resume=True)
    _, task, _ = run_training(tmp_path, plan(ema=0.9), newer(), resume=True)
    _, straight, _ = run_training(tmp_path / "straight", plan(ema=0.9))
    assert all(torch.equal(a, b) for a, b in zip(task.parameters(), straight.parameters(), strict=True))
    assert read_checkpoint(tmp_path / "run" / "checkpoints" / "last").ema["1.count"] == 0


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_signals_leave_a_checkpoint(tmp_path, number, raised):
    handler, progress = signal.getsignal(number), Recorder()
    with pytest.raises(raised) as stopped:
        run_training(tmp_path, plan(), loader=StopAt(5, lambda: os.kill(os.getpid(), number)), progress=progress)
    assert raised is KeyboardInterrupt or stopped.value.code == 143
    assert signal.getsignal(number) is handler
    assert read_checkpoint(tmp_path / "run" / "checkpoints" / "last").state["step"] == 6
    assert "stopped by a signal after step 6" in progress.notes[0]
    resumed = Recorder()
    _, task, _ = run_training(tmp_path, plan(), resume=True, progress=resumed)
    assert resumed.notes == ["going on after step 6 of 8, epoch 1.5"]
    _, straight, _ = run_training(tmp_path / "straight", plan())
    assert all(torch.equal(a, b) for a, b in zip(task.parameters(), straight.parameters(), strict=True))


def test_a_second_interrupt_acts_at_once(tmp_path):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)  # lets Python run the handler
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_training(tmp_path, plan(), loader=StopAt(5, twice))
    assert read_checkpoint(tmp_path / "run" / "checkpoints" / "last").state["step"] == 4


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_layer(tmp_path):
    task = TinyTask()

    def spoil():
        task.model[2].register_forward_hook(lambda module, inputs, output: output / 0.0)

    with pytest.raises(NonFiniteError, match=r"at step 5 \(learning rate 0.00.*first in 2 \(ReLU\): .* its input is finite"):
        run_training(tmp_path, plan(), task, StopAt(5, spoil))
    assert all(torch.isfinite(p).all() for p in task.parameters())  # the bad step was not taken


def test_the_check_can_be_left_out(tmp_path):
    task = TinyTask()
    task.model[2].register_forward_hook(lambda module, inputs, output: output * float("nan"))
    run, _, summary = run_training(tmp_path, plan(check_finite=False), task)
    assert summary.steps == 8 and read_log(run.metrics_file)[0]["loss"] is None
    assert summary.best is None  # though some of its argmax are right


def test_a_gradient_that_is_not_finite_is_found_too(tmp_path):
    task = TinyTask()
    task.model[0].weight.register_hook(lambda grad: grad * float("nan"))
    with pytest.raises(NonFiniteError, match=r"at step 0 .*the gradient of 0.weight \(nan\)"):
        run_training(tmp_path, plan(), task)


def test_broken_samples_are_noted_once_and_counted_always(tmp_path):
    loader, val, progress = TinyLoader(), eval_loader(), Recorder()
    loader.broken = {(0, 1): "a.png cannot be read", (1, 1): "a.png cannot be read", (1, 2): "late.png cannot be read"}
    val.broken = {(0, 0): "val.png cannot be read"}  # at every evaluation
    run, _, _ = run_training(tmp_path, plan(log_every=4, ema=0.9), loader=loader, val=val, progress=progress)
    lines = read_log(run.metrics_file)
    assert [line["broken"] for line in lines if line["kind"] == "train"] == [1, 2]
    assert [line["broken"] for line in lines if line["kind"] == "eval"] == [1, 1, 1, 1]
    notes = [(2, "a.png cannot be read"), (4, "val.png cannot be read"), (7, "late.png cannot be read")]
    assert [(line["step"], line["text"]) for line in lines if line["kind"] == "note"] == notes
    assert progress.notes == [text for _, text in notes]


def test_nothing_broken_is_not_counted(tmp_path):
    run, _, _ = run_training(tmp_path, plan())
    assert not any("broken" in line for line in read_log(run.metrics_file))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_keeps_float32_weights(tmp_path, precision):
    seen = set()
    task = TinyTask()
    task.model[0].register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    _, _, summary = run_training(tmp_path, plan(precision=precision, ema=0.9), task)
    assert seen == {torch.bfloat16 if precision == "bf16" else torch.float16}
    assert {p.dtype for p in task.parameters()} == {torch.float32} and summary.steps == 8
    scaler = read_checkpoint(tmp_path / "run" / "checkpoints" / "last").state["scaler"]
    assert bool(scaler) == (precision == "fp16")


def test_compile_failure_is_noted_and_training_goes_on(tmp_path, monkeypatch):
    def failing(forward):
        def call(x):
            raise RuntimeError("no compiler")

        return call

    _, straight, _ = run_training(tmp_path / "straight", plan())
    monkeypatch.setattr(torch, "compile", failing)
    run, task, _ = run_training(tmp_path, plan(compile=True))
    assert "no compiler" in read_log(run.metrics_file)[0]["text"]
    assert all(torch.equal(a, b) for a, b in zip(task.parameters(), straight.parameters(), strict=True))


def test_a_plan_without_a_step_is_refused(tmp_path):
    with pytest.raises(ValueError, match="leave nothing to train"):
        run_training(tmp_path, plan(epochs=0.1))


def test_steps_go_through_epochs_and_take_no_batch_too_many():
    asked = []

    class Loader(TinyLoader):
        def epoch(self, epoch=0, start=0):
            for number in range(start, self.steps):
                asked.append((epoch, number))
                yield []

    loader = Loader()
    assert loader.steps == 4
    assert len(list(steps(loader, 2, 10))) == 8
    assert asked == [(0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1)]


def test_a_loader_that_ends_early_is_noticed():
    class Short(TinyLoader):
        def epoch(self, epoch=0, start=0):
            yield []

    with pytest.raises(ValueError, match="promised 4 steps in an epoch, but epoch 0 ended at 1"):
        list(steps(Short(), 0, 8))


class StopInValidation(TinyLoader):
    """A signal comes with the second batch of the so-manieth pass."""

    def __init__(self, number, passes):
        super().__init__(samples=21, accumulate=1, jitter=0.0)
        self.number, self.passes, self.batches = number, passes, 0

    def epoch(self, epoch=0, start=0):
        self.passes -= 1
        for at, batches in enumerate(super().epoch(epoch, start)):
            if self.passes == 0 and at == 1:
                os.kill(os.getpid(), self.number)
            self.batches += 1
            yield batches


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
@pytest.mark.parametrize(("passes", "step"), [(1, 4), (2, 4), (3, 8), (4, 8)])
def test_signals_end_a_validation_between_batches(tmp_path, capfd, number, raised, passes, step):
    """Of the weights and of their average, in the middle and at the end: the run goes on as if it had not been stopped."""
    val, progress = StopInValidation(number, passes), Recorder()
    with pytest.raises(raised):
        run_training(tmp_path, plan(ema=0.5), val=val, progress=progress)
    assert val.batches == 3 * (passes - 1) + 2, "of three in each pass"
    assert ("Ctrl-C again stops at once" in capfd.readouterr().err) == (number == signal.SIGINT)
    assert progress.notes[-1].startswith(f"stopped by a signal in the validation after step {step};")
    assert not (tmp_path / "run" / "finished.json").exists()
    _, task, _ = run_training(tmp_path, plan(ema=0.5), resume=True)
    _, straight, _ = run_training(tmp_path / "straight", plan(ema=0.5))
    assert all(torch.equal(a, b) for a, b in zip(task.parameters(), straight.parameters(), strict=True))
    stopped, whole = (place / "run" for place in (tmp_path, tmp_path / "straight"))
    assert timeless(stopped / "metrics.jsonl") == timeless(whole / "metrics.jsonl")
    assert (stopped / "finished.json").read_text() == (whole / "finished.json").read_text()


def timeless(file):
    return [{name: value for name, value in line.items() if name != "time"} for line in read_log(file)]


def test_signals_that_are_ignored_stay_so():
    from dynavit.engine.interrupt import Interrupt

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.signal is None and signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
