"""Additions of `ldfn` to feature normalisation: the mixture, the way from LayerNorm, and its logs."""

import copy
import math

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import dynavit
from dynavit.norms import LearnableDynamicFeatureNorm, create_norm

DIM, HEADS = 6, 3


def numbers(seed: int = 0, images: int = 4) -> Tensor:
    noise = torch.randn(images, 5, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return noise * torch.linspace(0.5, 2, DIM, dtype=torch.float64) + torch.linspace(-1, 1, DIM, dtype=torch.float64)


def make(**options) -> LearnableDynamicFeatureNorm:
    norm = create_norm("ldfn", DIM, heads=HEADS, dtype=torch.float64, **options)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=noise, dtype=torch.float64)
    return norm


def close(found, expected, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


# --------------------------------------------------------------------------------------------- the mixture


@pytest.mark.parametrize(("groups", "count"), [("layer", 1), ("head", HEADS), ("channel", DIM)])
@pytest.mark.parametrize("rms", [False, True])
def test_centres_mix_arithmetically_and_scales_geometrically(groups, count, rms):
    norm = make(groups=groups, rms=rms)
    experts = 3 if rms else 2
    assert norm.centre_logit.shape == norm.scale_logit.shape == (count, experts)
    population = torch.randn(2 * experts, DIM, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    centre, log_scale = norm.mixture(population)
    for c in range(DIM):
        group = c * count // DIM
        for found, logit, first in ((centre, norm.centre_logit, 0), (log_scale, norm.scale_logit, experts)):
            odds = [math.exp(value) for value in logit[group].tolist()]
            expected = sum(odd / sum(odds) * population[first + k, c].item() for k, odd in enumerate(odds))
            assert found[c].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("limits", [{}, {"r_max": 1.01, "d_max": 0.01}])
def test_the_mixture_is_trained_by_the_map_of_evaluation(limits):
    """Also where the training map is clipped."""
    norm = make(rms=True, **limits)
    norm(numbers())
    norm.set_progress(1, 1)
    evaluation = copy.deepcopy(norm).eval()
    for layer in (norm, evaluation):
        layer(numbers(1)).backward(numbers(2))
    for key in ("centre_logit", "scale_logit"):
        found, expected = getattr(norm, key).grad, getattr(evaluation, key).grad
        assert expected.abs().max() > 1e-3
        close(found, expected)


# ------------------------------------------------------------------------------------------ from LayerNorm


def test_it_begins_as_layer_norm_and_collects_from_the_first_step():
    norm = make()
    x = numbers()
    expected = F.layer_norm(x, (DIM,), norm.ln_weight, norm.ln_bias, norm.eps)
    assert torch.equal(norm(x), expected)
    assert torch.equal(norm.eval()(x), expected)
    close(norm.population[0], x.mean((0, 1)))


def test_both_modes_of_evaluation_and_the_refusal_to_be_a_map():
    norm = make()
    norm(numbers())
    norm.eval().set_progress(4, 10)
    final = copy.deepcopy(norm)
    final.evaluate = "final"
    x = numbers(1)
    scale, shift = norm.population_map()
    ln = F.layer_norm(x, (DIM,), norm.ln_weight, norm.ln_bias, norm.eps)
    close(norm.blend, torch.tensor(0.5).double())
    close(norm(x), 0.5 * ln + 0.5 * (scale * x + shift))
    close(final(x), scale * x + shift)
    with pytest.raises(RuntimeError, match="50% LayerNorm"):
        norm.affine_map()
    norm.set_progress(10, 10)
    assert torch.equal(norm(x), final(x))
    close(norm.affine_map(), (scale, shift))


def plain_fit(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, float]:
    """Slopes (c) and intercepts (c) of y by x per channel, and the share of y's variance left over."""
    slopes, intercepts, left = [], [], 0.0
    for c in range(DIM):
        column = torch.stack([x[..., c].flatten(), torch.ones(x[..., c].numel(), dtype=torch.float64)], dim=1)
        solution = torch.linalg.lstsq(column, y[..., c].reshape(-1, 1)).solution.flatten()
        slopes.append(solution[0])
        intercepts.append(solution[1])
        left += (y[..., c].flatten() - column @ solution).square().mean().item()
    total = y.flatten(0, 1).var(0, correction=0).sum().item()
    return torch.stack(slopes), torch.stack(intercepts), left / total


@pytest.mark.parametrize("eta", [None, 0.0, 0.3])
def test_where_annealing_begins_the_map_is_the_least_squares_line(eta):
    """At the current affine parameters of LayerNorm, which may have been learned since the moments were taken."""
    norm, x = make(eta=eta, eps=1e-14), numbers()
    for step in range(10):
        norm.set_progress(step, 100)
        norm(x)
    with torch.no_grad():
        norm.ln_weight.mul_(1.5)
    assert not norm.fitted
    before = copy.deepcopy(norm)
    norm.set_progress(10, 100)
    assert norm.fitted and norm.blend == 1
    slope, intercept, left = plain_fit(x, F.layer_norm(x, (DIM,), norm.ln_weight, norm.ln_bias, norm.eps))
    close(norm.population_map(), (slope.detach(), intercept.detach()), 1e-9)
    assert norm.scalars()["unexplained"] == pytest.approx(left, abs=1e-9)
    assert 0.01 < left < 0.99
    for key in ("ln_weight", "ln_bias", "centre_logit", "scale_logit", "population"):
        assert torch.equal(getattr(norm, key), getattr(before, key))


def test_the_fit_is_made_once_also_across_a_restart():
    norm = make()
    for step in range(12):
        norm.set_progress(step, 100)
        norm(numbers(step))
    with torch.no_grad():
        norm.weight += 1.0
    restarted = make()
    restarted.load_state_dict(norm.state_dict())
    for layer in (norm, restarted):
        layer.set_progress(12, 100)
        layer(numbers(12))
    assert torch.equal(norm.weight, restarted.weight)
    close(restarted.state_dict(), norm.state_dict(), 0)
    close(restarted(numbers(13)), norm(numbers(13)), 0)


@pytest.mark.slow
def test_the_fit_reaches_the_shards_of_sharded_training(tmp_path):
    if dist.is_initialized():
        pytest.fail("another test left its process group")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        plain = make(eta=0.3)
        sharded = copy.deepcopy(plain)
        model = fully_shard(nn.Sequential(sharded, nn.Tanh()), mesh=init_device_mesh("cpu", (1,)))
        for step in range(4):
            for norm, call in ((plain, plain), (sharded, model)):
                norm.set_progress(step, 20)
                call(numbers(step)).sum().backward()
        assert plain.fitted and type(sharded.weight).__name__ == "DTensor"
        found = {key: value.full_tensor() for key, value in sharded.named_parameters()}
        close(found, dict(plain.named_parameters()))
        assert not torch.equal(plain.weight, make().weight)
    finally:
        dist.destroy_process_group()


def test_the_moments_of_the_line_are_smoothed_over_the_warmup():
    """Weighted as a moving average weighs; batches with other means add to variance and covariance."""
    norm, batches = make(alpha=0.7), [numbers(step) + step for step in range(3)]
    for x in batches:
        norm(x)
    shares = [0.49, 0.21, 0.3]
    normed = [F.layer_norm(x, (DIM,), eps=norm.eps) for x in batches]

    def mean(values: list[Tensor]) -> Tensor:
        return sum(share * value.mean((0, 1)) for share, value in zip(shares, values, strict=True))

    mean_x, mean_ln = mean(batches), mean(normed)
    x, ln = [v - mean_x for v in batches], [v - mean_ln for v in normed]
    products = [[a * b for a, b in zip(u, v, strict=True)] for u, v in ((x, x), (ln, ln), (x, ln))]
    expected = torch.stack([mean_x, mean(products[0]), mean_ln, mean(products[1]), mean(products[2])])
    close(norm.line, expected)


def test_padding_is_not_part_of_the_line():
    norm, bag = make(), make()
    mask = torch.rand(4, 5, generator=torch.Generator().manual_seed(0)) > 0.4
    norm(numbers().masked_fill(~mask[..., None], torch.nan), mask=mask)
    bag(numbers()[mask][None])
    close(norm.line, bag.line)


def test_after_the_fit_the_line_stays():
    norm = make()
    norm(numbers())
    norm.set_progress(2, 10)
    before = norm.line.clone()
    norm(numbers(1))
    assert torch.equal(norm.line, before)
    assert norm.steps == 2


def test_tokens_of_equal_length_leave_nothing_unexplained():
    """LayerNorm is a line in x where all tokens have the same mean and deviation."""
    x = F.layer_norm(numbers(), (DIM,), eps=0.0) * 3 + 2
    norm = make(eps=1e-12)
    norm(x)
    assert norm.scalars()["unexplained"] == pytest.approx(0, abs=1e-9)


def test_logs():
    norm = create_norm("ldfn", DIM, heads=HEADS)
    found = norm.scalars()
    names = ["centre_zscore", "centre_minmax", "centre_moved", "scale_zscore", "scale_minmax", "scale_moved"]
    assert list(found) == ["blend", "unexplained", "eta", *names, "skipped_steps"]
    assert found["unexplained"] == 1 and found["centre_moved"] == 0
    with torch.no_grad():
        norm.scale_logit[0] = torch.tensor([0.8, 0.2]).log()
    assert norm.scalars()["scale_moved"] == pytest.approx(0.1)
    assert norm.scalars()["scale_zscore"] == pytest.approx(0.6)


def test_without_affine_there_is_nothing_to_fit():
    norm = create_norm("ldfn", DIM, affine=False)
    norm(numbers().float())
    norm.set_progress(5, 10)
    assert norm(numbers(1).float()).isfinite().all()


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="'layer', 'head' or 'channel'; got 'token'"):
        create_norm("ldfn", DIM, groups="token")
    with pytest.raises(ValueError, match="together at most 1"):
        create_norm("ldfn", DIM, warmup=0.5, anneal=0.6)


# -------------------------------------------------------------------------------------------------- in use


@pytest.mark.parametrize("name", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("zscore", "minmax")), "ldfn"])
def test_a_small_transformer_trains(name):
    torch.manual_seed(0)
    model = dynavit.create_model("vit_tiny", norm=name, num_classes=2, img_size=8, patch_size=4, embed_dim=8, depth=1, heads=2)
    norms = [module for module in model.modules() if hasattr(module, "affine_map")]
    images, labels = torch.randn(6, 3, 8, 8), torch.tensor([0, 1, 0, 1, 0, 1])
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(40):
        for norm in norms:
            norm.set_progress(step, 40)
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    model.eval()
    one_by_one = torch.cat([model(image[None]) for image in images])
    close(model(images), one_by_one, 1e-4)
    assert torch.equal(one_by_one.argmax(1), labels)
