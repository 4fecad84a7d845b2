"""Unified Normalization: its rules step by step, the release's numbers, the outlier rule, and when the memory moves."""

import copy
import json

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import dynavit
from dynavit.norms import UnifiedNorm
from norms.test_goldens import normals
from norms.un_oracle import Oracle

DIM = 6


def layer(dim: int = DIM, *, start: int = 0, **options) -> UnifiedNorm:
    norm = UnifiedNorm(dim, **{"dtype": torch.float64, **options})
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter += 0.3 * torch.randn(dim, generator=noise)
        norm.iters.fill_(start)
    return norm


def oracle_of(norm: UnifiedNorm) -> Oracle:
    rule = None if not norm.filtration else "official" if norm.official else "clip"
    numbers = (p.detach().numpy().copy() for p in (norm.weight, norm.bias))
    return Oracle(*numbers, norm.window, norm.warmup, norm.alpha, rule, start=int(norm.iters))


def tokens(seed: int, *shape: int) -> torch.Tensor:
    shape = shape or (3, 5, DIM)
    scale = torch.linspace(0.25, 2, shape[-1], dtype=torch.float64)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale + 0.3


def step(norm, x, dy, mask=None):
    """Output and gradients of one training step: y, dx, dweight, dbias."""
    x = x.clone().requires_grad_()
    norm.zero_grad()
    y = norm(x, mask=mask)
    y.backward(dy)
    return y.detach(), x.grad, norm.weight.grad, norm.bias.grad


def close(found, expected, tolerance=1e-12):
    expected = expected.detach() if isinstance(expected, torch.Tensor) else torch.from_numpy(np.array(expected))
    torch.testing.assert_close(found.detach(), expected.reshape(found.shape), rtol=tolerance, atol=tolerance)


# ------------------------------------------------------------------------------------------- the equations

SCENARIOS = {  # options of the layer, {step: (channel, factor)} of outliers, iterations before the first step
    "warm-up": ({"warmup": 20}, {}, 0),
    "after it": ({"warmup": 3}, {}, 0),
    "window 1": ({"window": 1, "warmup": 3}, {7: (1, 9.0)}, 0),
    "window 2": ({"window": 2, "warmup": 4}, {}, 0),
    "window 5, warm-up shorter": ({"window": 5, "warmup": 2}, {8: (0, 20.0)}, 0),
    "a pair": ({"window": (2, 5), "warmup": 4, "alpha": 0.7}, {9: (2, 15.0)}, 0),
    "another pair": ({"window": (5, 1), "warmup": 1}, {}, 0),
    "no warm-up": ({"warmup": 0}, {6: (3, 6.0)}, 0),
    "r begins": ({"warmup": 5}, {}, 994),  # after 1000 steps
    "r after a long warm-up": ({"warmup": 1004}, {11: (2, 8.0)}, 996),
    "r at its limits": ({"warmup": 2}, dict.fromkeys(range(8, 13), (1, 40.0)) | {3: (0, 1e-3)}, 2000),
    "outliers": ({"warmup": 5}, {8: (2, 12.0), 10: (0, 0.01), 11: (5, 30.0)}, 0),
}


@pytest.mark.parametrize(
    ("official", "filtration"),
    [(False, True), (True, False), *(pytest.param(both, both, marks=pytest.mark.slow) for both in (False, True))],
)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_steps_follow_the_rules(scenario, official, filtration):
    options, outliers, start = SCENARIOS[scenario]
    norm = layer(official=official, filtration=filtration, start=start, **options)
    oracle = oracle_of(norm)
    for t in range(1, 15):
        x, dy = tokens(t), tokens(100 + t)
        if t in outliers:
            channel, factor = outliers[t]
            x[..., channel] *= factor
        masked = t % 3 > 0
        mask = torch.rand(3, 5, generator=torch.Generator().manual_seed(t)) > (0.3 if masked else -1)
        y, dx, dweight, dbias = step(norm, x, dy, mask if masked else None)
        valid, everything = mask.flatten().numpy(), np.ones(15, bool)
        if not official:  # padding gives nothing and gets nothing
            x, dy = x * mask[..., None], dy * mask[..., None]
            y = y + norm.bias * ~mask[..., None]
        expected, saved = oracle.forward(x.flatten(0, 1).numpy(), valid)
        close(y, expected)
        gradients = oracle.backward(saved, dy.flatten(0, 1).numpy(), everything if official else valid)
        close(dx, gradients[0])
        close(dweight, gradients[1])
        close(dbias, gradients[2])
        for name, value in oracle.state().items():
            close(getattr(norm, name), value)


def test_the_scenarios_hold_outliers_of_both_rules():
    for official in (False, True):
        norm = layer(warmup=5, official=official, filtration=True)
        for t in range(1, 15):
            x = tokens(t)
            if t in (8, 11):
                x[..., 2] *= 12
            norm(x)
        assert norm.skip_counter.item() >= 2


def test_a_window_of_one_has_the_exact_gradient():
    norm = layer(window=1)
    x = tokens(1, 2, 3, DIM).requires_grad_()
    assert torch.autograd.gradcheck(norm, (x,))


def test_two_forwards_then_two_backwards():
    norm = layer(window=2, warmup=2)
    oracle = oracle_of(norm)
    for t in range(3):
        a, b, dy = tokens(t).requires_grad_(), tokens(50 + t).requires_grad_(), tokens(90 + t)
        y_a, y_b = norm(a), norm(b)
        _, saved_a = oracle.forward(a.detach().flatten(0, 1).numpy(), np.ones(15, bool))
        _, saved_b = oracle.forward(b.detach().flatten(0, 1).numpy(), np.ones(15, bool))
        for y, x, saved in ((y_b, b, saved_b), (y_a, a, saved_a)):
            y.backward(dy)
            close(x.grad, oracle.backward(saved, dy.flatten(0, 1).numpy(), np.ones(15, bool))[0])
        close(norm.ema_gz, oracle.psi)
        close(norm.buffer_gz, oracle.g)


# --------------------------------------------------------------------------------------- the release's numbers


@pytest.mark.parametrize("case", ["plain_w4", "outlier_w4", "padmask_w4", "input2d_w4"])
def test_the_released_layer(case, shared_golden):
    golden = np.load(shared_golden / "un" / f"{case}.npz")
    facts = json.loads((shared_golden / "un" / "cases.json").read_text())[case]
    made = facts["ctor"]
    norm = UnifiedNorm(
        DIM,
        window=made["window_size"],
        warmup=made["warmup_iters"],
        filtration=made["outlier_filtration"],
        official=True,
        dtype=torch.float64,
    )
    norm.load_state_dict(
        norm.state_dict() | {"weight": torch.from_numpy(golden["weight"]), "bias": torch.from_numpy(golden["bias"])}
    )
    norm.iters.fill_(facts["start_iter"])
    shape = golden["y"].shape[1:]
    scale, shift = torch.linspace(0.25, 2, DIM, dtype=torch.float64), torch.linspace(-0.5, 0.5, DIM, dtype=torch.float64)
    for t in range(1, facts["steps"] + 1):
        x = normals(f"un/{case}/x/{t}", *shape) * scale + shift
        if str(t) in facts["outliers"]:
            channel, factor = facts["outliers"][str(t)]
            x[..., channel] *= factor
        mask = None
        if facts["mask"]:
            mask = torch.stack([torch.arange(shape[1]) < shape[1] - (t + i) % 3 for i in range(shape[0])])
        found = step(norm, x, normals(f"un/{case}/g/{t}", *shape), mask)
        for name, value in zip(("y", "gx", "gw", "gb"), found, strict=True):
            close(value, golden[name][t - 1])
        for name in ("running_var", "ema_gz", "buffer_x2", "buffer_gz", "skip_counter", "iters"):
            close(getattr(norm, name), golden[name][t - 1])
    x = normals(f"un/{case}/xeval", *shape) * scale + shift
    close(norm.eval()(x), golden["y_eval"])
    a, c = (value.detach() for value in norm.affine_map())
    weight, bias = normals(f"un/{case}/foldW", 5, DIM), normals(f"un/{case}/foldb", 5)
    close(weight * a, golden["fold_W"])
    close(bias + weight @ c, golden["fold_b"])


def test_the_state_has_the_released_names_and_shapes():
    state = UnifiedNorm(DIM, window=(4, 3), official=True).state_dict()
    assert {name: tuple(value.shape) for name, value in state.items()} == {
        "weight": (6,),
        "bias": (6,),
        "running_var": (6,),
        "ema_gz": (6,),
        "iters": (1,),
        "buffer_x2": (4, 6),
        "buffer_gz": (3, 6),
        "skip_counter": (1,),
        "skipped_steps": (),  # ours alone: released states load without it
    }
    assert state["iters"].dtype == state["skip_counter"].dtype == torch.int64


def test_the_released_layer_takes_bags_of_tokens():
    norm = layer(official=True)
    twin = copy.deepcopy(norm)
    x, mask = tokens(1, 9, DIM), torch.arange(9) < 7
    close(norm(x, mask=mask), twin(x[None], mask=mask[None])[0])
    close(norm.running_var, twin.running_var)
    with pytest.raises(ValueError, match=r"\(9, 6\).*\(batch, tokens, channels\)"):
        layer()(x)


# ------------------------------------------------------------------------------------------------- outliers


def wide_batch(t: int) -> torch.Tensor:
    return torch.randn(4, 64, 384, generator=torch.Generator().manual_seed(t))


def test_ordinary_steps_are_no_outliers():
    """Channels of equal scale, where the released condition fires all the time."""
    ours, released = (UnifiedNorm(384, warmup=5, official=o, filtration=True) for o in (False, True))
    for t in range(25):
        ours(wide_batch(t))
        released(wide_batch(t))
    assert ours.skip_counter.item() == 0
    assert released.skip_counter.item() >= 18


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_a_spike_is_clipped_in_its_channel_and_forgotten(factor):
    spiked, calm = (UnifiedNorm(384, warmup=5) for _ in range(2))
    for t in range(25):
        x = wide_batch(t)
        calm(x)
        if t == 12:
            x[..., 7] *= factor
            y = spiked(x)
            # This step the channel is normalised by itself, and all others as ever.
            torch.testing.assert_close(y[..., 7].square().mean(), torch.tensor(1.0), rtol=1e-2, atol=0)
            assert spiked.skip_counter.item() == 1
            assert 0.3 < spiked.buffer_x2[13 % 4, 7] < 3
        else:
            spiked(x)
        assert 0.7 < spiked.running_var[7] < 1.4
    assert spiked.skip_counter.item() == 1  # no latch
    others = torch.arange(384) != 7
    assert torch.equal(spiked.running_var[others], calm.running_var[others])
    assert torch.equal(spiked.buffer_x2, calm.buffer_x2)


def test_a_new_scale_is_learned_in_a_few_steps():
    norm = UnifiedNorm(384, warmup=5)
    for t in range(40):
        norm(wide_batch(t) * (10.0 if t >= 10 else 1.0))
    torch.testing.assert_close(norm.buffer_x2.mean(), torch.tensor(100.0), rtol=0.05, atol=0)
    assert norm.skip_counter.item() <= 6 * 384


# ------------------------------------------------------------------------------------- when the memory moves


def train(norm, batches, shares=1):
    """Steps of mean losses whose batches come in `shares` parts, each with its own backward pass."""
    gradients = []
    for seed, x in enumerate(batches):
        norm.zero_grad()
        target = tokens(300 + seed, *x.shape)
        for part, wanted in zip(x.chunk(shares), target.chunk(shares), strict=True):
            ((norm(part) - wanted).square().sum() / x.numel()).backward()
        norm.commit_statistics()
        gradients.append(norm.weight.grad.clone())
    return gradients


def test_deferred_steps_equal_plain_ones():
    plain, deferred = layer(window=(2, 3), warmup=3), layer(window=(2, 3), warmup=3)
    deferred.defer_statistics()
    batches = [tokens(t, 4, 5, DIM) * (1 + 9 * (t == 6)) for t in range(10)]
    assert plain.skip_counter == 0
    torch.testing.assert_close(train(deferred, batches), train(plain, batches))
    torch.testing.assert_close(deferred.state_dict(), plain.state_dict())
    assert plain.skip_counter > 0


def test_accumulated_steps_count_once():
    norm = layer(window=2, warmup=100)
    norm.defer_statistics()
    batches = [tokens(t, 4, 5, DIM) for t in range(5)]
    train(norm, batches, shares=2)
    assert norm.iters.item() == 5
    q = torch.stack([batch.square().mean((0, 1)) for batch in batches])
    torch.testing.assert_close(norm.buffer_x2, q[[3, 4]])
    assert norm.pending_gz.abs().max() == 0 and norm.pending_gz_weight == 0


def test_gradient_statistics_of_parts_are_pooled():
    whole, parts = layer(warmup=100), layer(warmup=100)
    parts.defer_statistics()
    x, dy = tokens(1, 1, 5, DIM).expand(3, 5, DIM), tokens(2, 3, 5, DIM)
    # One sample over and over, so that parts are normalised alike; the gradients differ, and so do the parts' sizes.
    step(whole, x, dy)
    for part in (slice(0, 1), slice(1, 3)):
        step(parts, x[part], dy[part])
    parts.commit_statistics()
    torch.testing.assert_close(parts.state_dict(), whole.state_dict())


def test_the_released_layer_does_not_defer():
    norm = layer(official=True)
    norm.defer_statistics()
    step(norm, tokens(1), tokens(2))
    assert norm.iters.item() == 1 and norm.ema_gz.abs().max() > 0


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("official", [False, True])
def test_checkpointing_changes_nothing(official, deferred, reentrant):
    norm, twin = (layer(window=2, warmup=2, official=official, filtration=True) for _ in range(2))
    for one in (norm, twin):
        one.defer_statistics(deferred)
    for t in range(6):
        x, dy = tokens(t) * (10 if t == 4 else 1), tokens(100 + t)
        expected = step(twin, x, dy)
        x = x.clone().requires_grad_()
        norm.zero_grad()
        y = checkpoint(norm, x, use_reentrant=reentrant)
        y.backward(dy)
        for found, value in zip((y, x.grad, norm.weight.grad, norm.bias.grad), expected, strict=True):
            assert torch.equal(found.detach(), value)
        for one in (norm, twin):
            one.commit_statistics()
        assert all(torch.equal(value, twin.state_dict()[name]) for name, value in norm.state_dict().items())


def test_overflowing_gradients_are_not_remembered():
    norm = layer()
    step(norm, tokens(0), tokens(1))
    before = copy.deepcopy(norm.state_dict())
    dy = tokens(2)
    dy[0, 0, 3] = torch.inf
    step(norm, tokens(0), dy)
    others = torch.arange(DIM) != 3
    assert torch.equal(norm.ema_gz[3], before["ema_gz"][3]) and norm.ema_gz.isfinite().all()
    assert torch.all(norm.ema_gz[others] != before["ema_gz"][others]) and norm.buffer_gz.isfinite().all()


def test_a_batch_of_padding_is_no_step_of_the_released_layer():
    norm = layer(official=True)
    step(norm, tokens(0), tokens(1))
    before = copy.deepcopy(norm.state_dict())
    norm(tokens(1), mask=torch.zeros(3, 5, dtype=torch.bool))
    assert all(torch.equal(norm.state_dict()[name], value) for name, value in before.items())


def test_recalibration_takes_the_exact_second_moment():
    norm = layer()
    batches = [tokens(0, 4, 5, DIM), 3 * tokens(1, 2, 5, DIM)]
    before = norm.iters.item()
    dynavit.recalibrate(torch.nn.Sequential(norm), batches)
    torch.testing.assert_close(norm.running_var, torch.cat(batches).square().mean((0, 1)))
    assert norm.iters.item() == before and not norm.training


# --------------------------------------------------------------------------------------------- at evaluation


def test_scalars_tell_outliers():
    norm = layer()
    norm.skip_counter.fill_(3)
    assert norm.scalars() == {"outliers": 3.0, "skipped_steps": 0.0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window counts steps, at least 1.*got 0"),
        ({"window": (4, 4, 4)}, "a pair"),
        ({"alpha": 9}, "between 0 and 1; got 9"),
        ({"warmup": -1}, "at least 0; got -1"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        UnifiedNorm(DIM, **options)


# ------------------------------------------------------------------------------------------------ in a model


@pytest.mark.slow
def test_a_vit_learns():
    """In mixed precision and with activation checkpointing; what it learned is there at evaluation."""
    torch.manual_seed(0)
    model = dynavit.swap_norms(dynavit.create_model("test_vit"), "un", start="fresh", norm_options={"warmup": 10})
    model.set_grad_checkpointing(True)
    assert sum(isinstance(module, UnifiedNorm) for module in model.modules()) == 7
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    x, labels = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(1)), torch.arange(8)
    losses = []
    for _ in range(60):  # v follows the weights some ten steps behind
        with torch.autocast("cpu", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(x).float(), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 < 1.5 < losses[0]
    assert torch.equal(model.eval()(x).argmax(1), labels)
    assert model(x[:1]).isfinite().all()


# -------------------------------------------------------------------------------------------- torch.compile


# torch 2.13's tracer itself instantiates autograd.Function, and inductor uses torch.jit; both warn.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
@pytest.mark.parametrize("mode", ["plain", "deferred", "official"])
def test_compiled_steps_equal_eager_ones(mode):
    """Through the warm-up, past the step where r begins, and over an outlier."""
    torch.compiler.reset()
    eager = layer(window=2, warmup=996, start=993, official=mode == "official", filtration=True)
    eager.defer_statistics(mode == "deferred")
    compiled = copy.deepcopy(eager)
    fast = torch.compile(compiled, fullgraph=True)
    for t in range(12):
        x, dy = tokens(t) * (12 if t == 9 else 1), tokens(100 + t)
        expected = step(eager, x, dy)
        x = x.clone().requires_grad_()
        compiled.zero_grad()
        y = fast(x)
        y.backward(dy)
        torch.testing.assert_close((y.detach(), x.grad, compiled.weight.grad, compiled.bias.grad), expected)
        for one in (eager, compiled):
            one.commit_statistics()
        torch.testing.assert_close(compiled.state_dict(), eager.state_dict())
    assert eager.iters.item() == 1005 and eager.skip_counter.item() > 0


def test_the_warmup_is_at_most_a_tenth_of_a_run_whose_length_is_told():
    ours, theirs = dynavit.create_norm("un", 4), dynavit.create_norm("un", 4, official=True)
    for norm in (ours, theirs):
        norm.set_progress(0, 500)
    assert (ours.warmup, theirs.warmup) == (50, 4000)
    ours.set_progress(0, 100_000)
    assert ours.warmup == 4000
