"""When smoothed statistics move: checks for every norm that has them, as listed by the registry."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dynavit.norms import create_norm
from dynavit.norms.annealed import AnnealedNorm
from dynavit.norms.factory import norm_class_of
from dynavit.norms.statistics.smoothed import SmoothedNorm
from norms.ddp_worker import NAMES, OPTIONS

DIM = 8
FOLDABLE = [name for name in NAMES if hasattr(norm_class_of(name), "affine_map")]

smoothed = pytest.mark.parametrize("name", NAMES)
foldable = pytest.mark.parametrize("name", FOLDABLE)


def tokens(seed: int, samples: int = 4, dtype: torch.dtype = torch.float64) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    scale, shift = torch.linspace(0.5, 2, DIM), torch.linspace(-1, 1, DIM)
    return (torch.randn(samples, 5, DIM, generator=noise, dtype=torch.float64) * scale + shift).to(dtype)


def make(name: str, dtype: torch.dtype = torch.float64, steps: int = 3, **options: Any) -> SmoothedNorm:
    """A norm in the middle of its training."""
    norm = create_norm(name, DIM, heads=2, dtype=dtype, **OPTIONS.get(name, {}), **options)
    if hasattr(norm, "set_progress"):
        norm.set_progress(1, 2)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter += (0.2 * torch.randn(parameter.shape, generator=noise)).to(parameter)
    for step in range(steps):
        run(norm, tokens(100 + step, dtype=dtype))
    return norm


def run(norm: SmoothedNorm, x: Tensor, mask: Tensor | None = None, call: Any = None) -> dict[str, Tensor]:
    """Output and gradients for a cotangent that depends on the input alone."""
    x = x.clone().requires_grad_()
    norm.zero_grad()
    y = norm(x, mask=mask) if call is None else call(x)
    y.backward(torch.cos(7 * x.detach()).nan_to_num())
    return {"y": y.detach(), "x": x.grad, **{key: p.grad.clone() for key, p in norm.named_parameters()}}


def state(norm: SmoothedNorm) -> dict[str, Tensor]:
    return copy.deepcopy(norm.state_dict())


def equal(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


# ---------------------------------------------------------------------------------------- once per optimiser step


@smoothed
def test_deferred_statistics_move_at_the_commit(name):
    norm = make(name)
    norm.defer_statistics()
    before = state(norm)
    run(norm, tokens(0))
    equal(state(norm), before)
    norm.commit_statistics()
    assert any(not torch.equal(new, before[key]) for key, new in state(norm).items())


@smoothed
def test_a_step_that_is_made_again_counts_once(name):
    once = make(name)
    once.defer_statistics()
    again = copy.deepcopy(once)
    run(again, tokens(1))
    again.forget_statistics()
    for norm in (once, again):
        run(norm, tokens(0))
        norm.commit_statistics()
    equal(state(again), state(once))


@smoothed
def test_after_deferring_every_call_moves_them_again(name):
    norm = make(name)
    plain = copy.deepcopy(norm)
    norm.defer_statistics()
    run(norm, tokens(1))
    norm.defer_statistics(False)
    for one in (norm, plain):
        run(one, tokens(0))
    equal(state(norm), state(plain))
    equal(norm.pending, torch.zeros_like(norm.pending))


@smoothed
@pytest.mark.parametrize("samples", [1, 3])
def test_deferring_changes_nothing_where_each_step_is_one_call(name, samples):
    plain = make(name)
    deferred = copy.deepcopy(plain)
    deferred.defer_statistics()
    for step in range(3):
        one, two = (run(norm, tokens(step, samples)) for norm in (plain, deferred))
        plain.commit_statistics()
        deferred.commit_statistics()
        torch.testing.assert_close(two, one)
        torch.testing.assert_close(state(deferred), state(plain))


@smoothed
def test_micro_batches_move_the_state_like_one_batch(name):
    """Unequal ones, with garbage in their padding."""
    whole = make(name)
    whole.defer_statistics()
    parts = copy.deepcopy(whole)
    x, valid = tokens(0, samples=5), torch.rand(5, 5, generator=torch.Generator().manual_seed(2)) > 0.3
    x[~valid] = float("nan")
    run(whole, x, valid)
    for share in (slice(0, 2), slice(2, 3), slice(3, 5)):
        run(parts, x[share], valid[share])
    whole.commit_statistics()
    parts.commit_statistics()
    found, expected = state(parts), state(whole)
    for key in ("ema_gz", "buffer_gz"):  # their z is divided by the micro-batch's own moment
        found.pop(key, None), expected.pop(key, None)
    torch.testing.assert_close(found, expected)


@smoothed
@pytest.mark.parametrize("deferred", [False, True])
def test_a_step_without_a_token_is_not_remembered(name, deferred):
    norm = make(name)
    norm.defer_statistics(deferred)
    before = state(norm)
    run(norm, tokens(0), torch.zeros(4, 5, dtype=torch.bool))
    norm.commit_statistics()
    after = state(norm)
    if name == "power":
        assert after.pop("iters") == before.pop("iters") + 1
    equal(after, before)


@smoothed
@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recomputed_call_is_the_call_it_repeats(name, reentrant, deferred):
    """Activation checkpointing: the same outputs, gradients and memory as without it."""
    plain = make(name)
    plain.defer_statistics(deferred)
    repeated = copy.deepcopy(plain)
    for step in range(3):
        one = run(plain, tokens(step))
        two = run(repeated, tokens(step), call=lambda x: checkpoint(repeated, x, use_reentrant=reentrant))
        plain.commit_statistics()
        repeated.commit_statistics()
        equal(two, one)
        equal(state(repeated), state(plain))


# torch 2.13's tracer itself instantiates autograd.Function, and inductor uses torch.jit; both warn.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
@smoothed
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_micro_batches_move_the_same_memory(name, backend):
    torch.compiler.reset()
    eager = make(name)
    eager.defer_statistics()
    compiled = copy.deepcopy(eager)
    fast = torch.compile(compiled, fullgraph=True, backend=backend)
    for step in range(3):
        for part in range(2):
            one = run(eager, tokens(10 * step + part))
            two = run(compiled, tokens(10 * step + part), call=fast)
            torch.testing.assert_close(two, one)
        eager.commit_statistics()
        compiled.commit_statistics()
        torch.testing.assert_close(state(compiled), state(eager))


@smoothed
def test_a_layer_from_the_meta_device_has_nothing_pending(name):
    norm = create_norm(name, DIM, heads=2, device="meta").to_empty(device="cpu")
    norm.pending.fill_(float("nan"))
    norm.reset_parameters()
    norm.defer_statistics()
    run(norm, tokens(0, dtype=torch.float32))
    norm.commit_statistics()
    assert all(value.isfinite().all() for value in norm.state_dict().values())


# --------------------------------------------------------------------------------------------------------- precision


@smoothed
def test_memory_of_a_half_precision_layer_is_wide(name):
    norm = make(name, dtype=torch.bfloat16, steps=0)
    assert {buffer.dtype for buffer in norm.buffers() if buffer.is_floating_point()} == {torch.float32}


@smoothed
@pytest.mark.parametrize("deferred", [False, True])
def test_half_precision_tokens_leave_the_memory_of_wide_ones(name, deferred):
    wide = make(name, dtype=torch.float32)
    wide.defer_statistics(deferred)
    half = copy.deepcopy(wide)
    with torch.no_grad():
        wide(tokens(0, dtype=torch.bfloat16).float())
        with torch.autocast("cpu", torch.bfloat16):
            half(tokens(0, dtype=torch.bfloat16))
    for norm in (wide, half):
        norm.commit_statistics()
    equal(state(half), state(wide))


# --------------------------------------------------------------------------------------------------- the map at evaluation


def annealed(norm: SmoothedNorm) -> SmoothedNorm:
    if isinstance(norm, AnnealedNorm):
        norm.set_progress(1, 1)
    return norm.eval()


def test_what_folds():
    assert set(FOLDABLE) >= {"bn", "repbn", "prepbn"}
    assert "sn" not in FOLDABLE and "power" not in FOLDABLE


@foldable
@pytest.mark.parametrize("affine", [True, False])
def test_evaluation_is_the_affine_map(name, affine):
    norm = annealed(make(name, affine=affine))
    scale, shift = norm.affine_map()
    assert scale.shape == shift.shape == (DIM,)
    equal(norm(tokens(0)), tokens(0) * scale + shift)


@foldable
def test_the_map_of_a_half_precision_layer_is_wide(name):
    scale, shift = annealed(make(name).bfloat16()).affine_map()
    assert scale.dtype == shift.dtype == torch.float32


@foldable
def test_in_training_there_is_no_map(name):
    norm = annealed(make(name)).train()
    with pytest.raises(RuntimeError, match=r"call \.eval\(\) first"):
        norm.affine_map()


@pytest.mark.parametrize("name", [name for name in FOLDABLE if issubclass(norm_class_of(name), AnnealedNorm)])
def test_while_annealing_there_is_no_map(name):
    norm = make(name).eval()
    with pytest.raises(RuntimeError, match="% LayerNorm and no affine map"):
        norm.affine_map()
    norm.set_progress(1, 1)
    norm.affine_map()


# -------------------------------------------------------------------------------------- batches that are not finite

bad_numbers = pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e200], ids=["nan", "inf", "overflow"])


def spoilt(bad: float, seed: int = 0) -> Tensor:
    """Tokens with one bad number, in one channel."""
    x = tokens(seed)
    x[1, 2, 3] = bad
    return x


def memory(norm: SmoothedNorm) -> dict[str, Tensor]:
    """The state without the counters that a skipped step does move."""
    return {key: value for key, value in state(norm).items() if key != "skipped_steps" and (type(norm).__name__, key) != POWER}


POWER = ("PowerNorm", "iters")  # it counts every call


def skipped(norm: SmoothedNorm) -> float:
    return norm.scalars()["skipped_steps"]


@smoothed
@bad_numbers
@pytest.mark.parametrize("deferred", [False, True])
def test_a_step_that_is_not_finite_is_skipped_and_counted(name, bad, deferred):
    norm = make(name)
    norm.defer_statistics(deferred)
    before = memory(norm)
    run(norm, spoilt(bad))
    norm.commit_statistics()
    if name == "power" and bad == 1e200:  # each token is scaled to unit length first, so nothing overflows
        assert skipped(norm) == 0 and all(value.isfinite().all() for value in memory(norm).values())
        return
    equal(memory(norm), before)
    assert skipped(norm) == 1
    run(norm, tokens(1))
    norm.commit_statistics()
    after = memory(norm)
    assert all(value.isfinite().all() for value in after.values())
    assert any(not torch.equal(value, before[key]) for key, value in after.items())
    assert skipped(norm) == 1
    assert norm.eval()(tokens(2)).isfinite().all()


@smoothed
@bad_numbers
def test_one_bad_micro_batch_drops_the_statistics_of_its_step(name, bad):
    """So that it does not matter how a step is cut."""
    norm = make(name)
    norm.defer_statistics()
    before = memory(norm)
    for x in (tokens(0), spoilt(bad if name != "power" else float("nan"), seed=1), tokens(2)):
        run(norm, x)
    norm.commit_statistics()
    equal(memory(norm), before)
    assert skipped(norm) == 1


@smoothed
def test_a_recomputed_bad_call_is_counted_once(name):
    plain = make(name)
    repeated = copy.deepcopy(plain)
    run(plain, spoilt(float("nan")))
    run(repeated, spoilt(float("nan")), call=lambda x: checkpoint(repeated, x, use_reentrant=False))
    equal(state(repeated), state(plain))
    assert skipped(repeated) == 1


@smoothed
def test_recalibration_leaves_bad_batches_out(name):
    clean, dirty = make(name), make(name)
    for norm, batches in ((clean, [tokens(0), tokens(1)]), (dirty, [tokens(0), spoilt(float("nan"), 2), tokens(1)])):
        norm.begin_recalibration()
        for x in batches:
            norm(x)
        norm.end_recalibration()
    equal(memory(dirty), memory(clean))
    assert (skipped(clean), skipped(dirty)) == (0, 1)


@smoothed
def test_state_of_an_earlier_version_has_no_counter(name):
    norm = make(name)
    run(norm, spoilt(float("nan")))
    older = {f"layer.{key}": value for key, value in state(norm).items() if key != "skipped_steps"}
    given = dict(older)
    fresh = torch.nn.ModuleDict({"layer": make(name, steps=0)})
    fresh.load_state_dict(older, strict=True)
    assert older.keys() == given.keys(), "the caller's dict is left alone"
    equal(memory(fresh["layer"]), memory(norm))
    assert skipped(fresh["layer"]) == 0
    fresh["layer"].load_state_dict(norm.state_dict())
    assert skipped(fresh["layer"]) == 1
