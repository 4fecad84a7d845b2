"""`zscore`, `minmax` and `ldfn` in training: the oracle is the plain equations; then invariances, memory and edge cases."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dynavit.norms import create_norm, recalibrate
from dynavit.norms.feature import ASSUMED_STEPS, FeatureNorm
from norms.feature_oracle import Channel

DIM = 4
NAMES = ["zscore", "minmax", "ldfn"]
every = pytest.mark.parametrize("name", NAMES)
VARIANTS = [
    ("zscore", {}),
    ("minmax", {}),
    ("minmax", {"extrema": "quantile", "quantile": 0.1}),
    ("minmax", {"extrema": "batch"}),
    ("ldfn", {}),
]
every_variant = pytest.mark.parametrize(("name", "options"), VARIANTS)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Tokens (3, 6, DIM) unless a shape is given, whose channels have means and scales of their own."""
    shape = shape or (3, 6, DIM)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return noise * torch.linspace(0.5, 2, shape[-1], dtype=torch.float64) + torch.linspace(
        -1, 1, shape[-1], dtype=torch.float64
    )


def make(name: str, progress: float = 1.0, **options) -> FeatureNorm:
    """A norm in float64 with parameters off their start; at this share of its run, by default at the end, without LayerNorm."""
    norm = create_norm(name, DIM, heads=2, dtype=torch.float64, **options)
    norm.set_progress(round(progress * 1000), 1000)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=noise, dtype=torch.float64)
    return norm


def holes() -> Tensor:
    """Six, three, and one real token."""
    return torch.tensor([[1, 1, 1, 1, 1, 1], [1, 0, 1, 0, 1, 0], [0, 0, 1, 0, 0, 0]]).bool()


def close(found, expected, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


# ------------------------------------------------------------------------------------------ whole training


def channels_of(norm: FeatureNorm) -> list[Channel]:
    """The oracle's channels with this norm's parameters."""
    channels = []
    for c in range(DIM):
        shares = [[1.0], [1.0]]
        if len(norm.experts) > 1:
            group = c // (DIM // len(norm.centre_logit))
            shares = [logit[group].softmax(0).tolist() for logit in (norm.centre_logit, norm.scale_logit)]
        eta = 0.0 if norm.eta is None else norm.eta.item()
        limits = (norm.alpha, norm.tau, norm.eps, norm.r_max, norm.d_max)
        channels.append(Channel(norm.experts, *shares, norm.weight[c].item(), norm.bias[c].item(), eta, *limits))
    return channels


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("zscore", {}),
        ("zscore", {"eta": 0.3}),
        ("minmax", {}),
        ("ldfn", {"rms": True}),
        ("ldfn", {"groups": "channel", "eta": None}),
    ],
)
def test_a_training_run_follows_the_plain_equations(name, options, masked):
    """Thirteen steps: warm-up, opening limits, drift that r and delta have to bridge, and an outlier for the guard."""
    norm = make(name, alpha=0.8, tau=2.0, r_max=1.5, d_max=0.5, **options)
    oracle = channels_of(norm)
    mask = holes() if masked else torch.ones(3, 6, dtype=torch.bool)
    clipped = 0
    for step in range(13):
        opening = min(1.0, max(0.0, (step - 2) / 2))
        norm.opening.fill_(opening)
        x, dy = numbers(seed=step) * (1 + 0.1 * step) + 0.1 * step, numbers(seed=100 + step)
        if step == 10:
            x[0, 2] = 60.0
        x.requires_grad_()
        y = norm(x, mask=mask)
        y.backward(dy)
        for c, channel in enumerate(oracle):
            images, grads = (
                [row[valid].tolist() for row, valid in zip(t[..., c].detach(), mask, strict=True)] for t in (x, dy)
            )
            expected = channel.step(images, grads, opening)
            for found, rows in zip((y.detach(), x.grad), expected, strict=True):
                close(found[..., c][mask], torch.tensor([v for row in rows for v in row], dtype=torch.float64), 1e-11)
            close(norm.population[:, c], torch.tensor(channel.centres + channel.logs, dtype=torch.float64))
            clipped += step == 10 and abs(channel.history[-1][1][0] - channel.history[-2][1][0]) < 1.0
    assert clipped == DIM, "the outlier was not held back"
    assert norm.steps == 13


# ---------------------------------------------------------------------------------------- one training step


def by_autograd(norm: FeatureNorm, x: Tensor, mask: Tensor, population: Tensor) -> Tensor:
    """u = sg(r) (z - kappa) / rho + sg(delta) + [inference map - sg(inference map)], differentiated by autograd."""
    valid = mask[..., None]
    count = mask.sum()
    mean = torch.where(valid, x, 0.0).sum((0, 1)) / count
    sigma = (torch.where(valid, x - mean, 0.0).square().sum((0, 1)) / count + norm.eps).sqrt()
    z = (x - mean) / sigma
    with torch.no_grad():
        statistics, weight = norm.batch_statistics(torch.where(valid, x, 0.0), mask)
        c, log_d = norm.mixture(norm.measure(statistics, weight))
        kappa, rho = (c - mean) / sigma, log_d.exp() / sigma
    centre, log_scale = norm.mixture(population)
    with torch.no_grad():
        r = (log_d.exp() / log_scale.exp()).clamp(1 / norm.r_max, norm.r_max)
        delta = ((c - centre) / log_scale.exp()).clamp(-norm.d_max, norm.d_max)
    inference = (x.detach() - centre) / log_scale.exp()
    u = r * (z - kappa) / rho + delta + inference - inference.detach()
    y = norm.weight * u + norm.bias
    # The bracket sees the gain, but is 0 in value: no gradient of the gain comes through it.
    return y if norm.eta is None else y + norm.eta * x


@pytest.mark.parametrize("limits", [{}, {"r_max": 1.05, "d_max": 0.02}])
@pytest.mark.parametrize("masked", [False, True])
@every
def test_gradients_are_those_of_the_equations_with_their_stops(name, masked, limits):
    norm = make(name, eta=0.2, **limits)
    norm(numbers(seed=7) * 1.2)
    population = norm.population.clone()
    mask = holes() if masked else torch.ones(3, 6, dtype=torch.bool)
    dy = torch.where(mask[..., None], numbers(seed=9), 0.0)
    results = []
    for call in (lambda x: norm(x, mask=mask), lambda x: by_autograd(norm, x, mask, population)):
        x = numbers(seed=8).requires_grad_()
        norm.zero_grad()
        y = call(x)
        y.backward(dy)
        grads = {key: p.grad.clone() for key, p in norm.named_parameters() if p.grad is not None and p.grad.any()}
        results.append((y.detach()[mask], x.grad, grads))
    close(results[0], results[1])


@every
def test_unclipped_training_is_the_map_of_evaluation(name):
    norm = make(name, r_max=100.0, d_max=100.0)
    for step in range(3):
        norm(numbers(seed=step))
    before = copy.deepcopy(norm).eval()
    x = numbers(seed=9) * 1.5 + 0.5
    close(norm(x), before(x), 5e-15)


@every
def test_closed_limits_are_the_batch_alone(name):
    """Earlier batches leave no trace in the output."""
    norm = make(name)
    norm.opening.zero_()
    fresh = copy.deepcopy(norm)
    norm(numbers(seed=1) * 9 + 4)
    close(norm(numbers(seed=2)), fresh(numbers(seed=2)), 1e-13)


def test_far_from_the_population_the_limits_hold():
    norm = make("zscore", affine=False)
    norm(numbers(seed=1))
    x = numbers(seed=1) * 100 + 1000
    own = (x - x.mean((0, 1))) / x.flatten(0, 1).var(0, correction=0).add(norm.eps).sqrt()
    close(norm(x), 3 * own + 5, 1e-9)


@every
def test_the_gradient_neither_moves_nor_stretches_the_batch(name):
    norm = make(name, eta=None, eps=1e-12)
    norm(numbers(seed=1))
    x = numbers(seed=2).requires_grad_()
    norm(x, mask=holes()).backward(numbers(seed=3))
    centred = torch.where(holes()[..., None], x - x[holes()].mean(0), 0.0)
    close(x.grad.sum((0, 1)), torch.zeros(DIM, dtype=torch.float64))
    close((x.grad * centred).sum((0, 1)), torch.zeros(DIM, dtype=torch.float64), 1e-10)


# --------------------------------------------------------------------------------------------- invariances


@settings(max_examples=25, deadline=None)
@given(scale=st.floats(0.01, 100), shift=st.floats(-10, 10), name=st.sampled_from(NAMES))
def test_scale_and_shift_of_the_features_change_nothing(scale, shift, name):
    """A run on s x + b gives the outputs of the run on x: the memory follows. Without the rms expert, which knows 0."""
    one, other = (make(name, eta=None, eps=1e-16) for _ in range(2))
    for step in range(4):
        x = numbers(seed=step)
        close(other(scale * x + shift), one(x), 1e-8)
    close(other.eval()(scale * x + shift), one.eval()(x), 1e-8)


@every_variant
def test_the_order_of_tokens_and_images_does_not_matter(name, options):
    one, other = make(name, **options), make(name, **options)
    tokens, images = torch.tensor([3, 1, 0, 5, 2, 4]), torch.tensor([2, 0, 1])
    for step in range(2):
        x = numbers(seed=step)
        close(other(x[images][:, tokens]), one(x)[images][:, tokens])
    close(other.state_dict(), one.state_dict())


# ---------------------------------------------------------------------------------------------- edge cases


def test_images_of_one_token_have_the_numbers_of_zscore():
    minmax, zscore = create_norm("minmax", DIM, dtype=torch.float64), create_norm("zscore", DIM, dtype=torch.float64)
    x = numbers(5, 1, DIM)
    close(minmax(x), zscore(x))
    close(minmax.population, zscore.population)


@every
def test_a_single_image_is_a_batch(name):
    norm, other = make(name), make(name)
    other.opening.zero_()
    for step in range(3):
        x = numbers(1, 6, DIM, seed=step).requires_grad_()
        y = norm(x)
        y.sum().backward()
        assert y.isfinite().all() and x.grad.isfinite().all()
        # One image strays from the population: its own statistics would give something else.
        assert step == 0 or (y - other(x)).abs().max() > 0.01
    assert norm.steps == 3


@every
@pytest.mark.parametrize("tokens", [0, 1])
def test_less_than_two_tokens_are_not_remembered(name, tokens):
    norm = make(name)
    norm(numbers())
    before = copy.deepcopy(norm.state_dict())
    mask = torch.zeros(3, 6, dtype=torch.bool)
    mask[1, :tokens] = True
    assert norm(numbers(seed=1), mask=mask).isfinite().all()
    assert all(torch.equal(value, before[key]) for key, value in norm.state_dict().items())


# -------------------------------------------------------------------------------------------------- memory


@every_variant
def test_micro_batches_move_the_memory_as_one_batch(name, options):
    """Committed once, also with padding and unequal parts."""
    whole, parts = make(name, progress=0.05, **options), make(name, progress=0.05, **options)
    parts.defer_statistics()
    for step in range(3):
        x, mask = numbers(5, 6, DIM, seed=step), torch.rand(5, 6, generator=torch.Generator().manual_seed(step)) > 0.4
        whole(x, mask=mask)
        before = parts.population.clone()
        for part in ([0, 1], [2, 3, 4]):
            parts(x[part], mask=mask[part])
        assert torch.equal(parts.population, before)
        parts.commit_statistics()
        close(parts.state_dict(), whole.state_dict())
    assert parts.steps == 3
    parts.commit_statistics()
    assert parts.steps == 3, "nothing was collected since"


@every_variant
def test_recalibration_gives_exact_statistics(name, options):
    norm, once = make(name, **options), make(name, **options)
    for step in range(3):
        norm(numbers(seed=step) * 5)
    batches = [numbers(4, 6, DIM, seed=10 + i) + i for i in range(3)]
    recalibrate(norm, batches)
    once(torch.cat(batches))
    close(norm.population, once.population)
    assert not norm.training
    assert norm.steps == 3


@every
def test_recalibration_looks_at_each_batch_alone(name):
    """The memory belongs to other weights, so it may not show in what the next layers see."""
    norm, fresh = make(name), make(name)
    norm(numbers() * 9 + 4)
    norm.begin_recalibration()
    close(norm(numbers(seed=1)), fresh(numbers(seed=1)))


@every
def test_at_evaluation_the_layer_is_its_affine_map(name):
    norm = make(name, eta=0.4)
    with pytest.raises(RuntimeError, match="eval"):
        norm.affine_map()
    norm(numbers())
    scale, shift = norm.eval().affine_map()
    assert scale.shape == shift.shape == (DIM,)
    x = numbers(seed=5)
    assert torch.equal(norm(x), x * scale + shift)


def test_told_nothing_the_limits_open_by_the_count_of_steps():
    norm = create_norm("zscore", DIM, warmup=0.1)
    for count, opening in ((0, 0.0), (0.1 * ASSUMED_STEPS, 0.0), (0.15 * ASSUMED_STEPS, 0.5), (ASSUMED_STEPS, 1.0)):
        norm.steps.fill_(int(count))
        norm(torch.randn(2, 6, DIM))
        assert norm.opening.item() == pytest.approx(opening, abs=0.002)
    norm.set_progress(15, 100)
    norm(torch.randn(2, 6, DIM))
    assert norm.opening.item() == pytest.approx(0.5)


# torch 2.13's tracer itself instantiates autograd.Function, and inductor uses torch.jit; both warn.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
@pytest.mark.slow
def test_compiled_steps_move_the_same_memory():
    """With open limits, where gradients depend on the memory as it was before the step."""
    torch.compiler.reset()
    eager = make("ldfn", progress=0.5)
    compiled = copy.deepcopy(eager)
    fast = torch.compile(compiled, fullgraph=True)
    for step in range(3):
        grads = []
        for layer, module in ((eager, eager), (fast, compiled)):
            module.zero_grad()
            x = (numbers(seed=step) * (1 + step)).requires_grad_()
            layer(x).backward(numbers(seed=100 + step))
            grads.append([x.grad, {key: p.grad for key, p in module.named_parameters()}])
        close(grads[1], grads[0], 1e-10)
        close(compiled.state_dict(), eager.state_dict(), 1e-10)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"extrema": "pixel"}, "'image_mean', 'quantile' or 'batch'; got 'pixel'"),
        ({"quantile": 0.5}, "between 0 and 0.5; got 0.5"),
        ({"alpha": 1.0}, "below 1; got 1.0"),
        ({"warmup": 2.0}, "share of the training run.*got 2.0"),
        ({"r_max": 0.5}, "r_max >= 1"),
    ],
)
def test_bad_options_are_named(option, message):
    with pytest.raises(ValueError, match=message):
        create_norm("minmax", DIM, **option)
