"""The normalisers against their equations, written out one value at a time in float64.

An oracle gets a ragged batch: a list of samples, each (tokens, channels), real tokens only. The layer gets the same batch
padded and masked. So one oracle checks the equation and that padding was left out.
"""

import math

import pytest
import torch
from torch import Tensor, nn

from dynavit.norms import Norm, create_norm

DIM, HEADS = 6, 3
LENGTHS = {"full": [5, 5, 5], "ragged": [5, 1, 3]}
EPS = 1e-5


def mean_of(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def variance_of(values: list[float], correction: int = 0) -> float:
    mean = mean_of(values)
    return math.fsum([(value - mean) ** 2 for value in values]) / max(len(values) - correction, 1)


# A token's neighbourhood: the values that (sample b, token t, channel c) is normalised with.
def channels_of_token(batch, b, t, c):
    return batch[b][t].tolist()


def tokens_of_sample(batch, b, t, c):
    return batch[b][:, c].tolist()


def tokens_of_batch(batch, b, t, c):
    return torch.cat(batch)[:, c].tolist()


def head_of_sample(batch, b, t, c):
    d = DIM // HEADS
    return batch[b][:, c // d * d : c // d * d + d].flatten().tolist()


def standardise(neighbourhood, correction=0):
    def rule(norm, batch, b, t, c):
        values = neighbourhood(batch, b, t, c)
        return (batch[b][t, c].item() - mean_of(values)) / math.sqrt(variance_of(values, correction) + EPS)

    return rule


def rms(norm, batch, b, t, c):
    return batch[b][t, c].item() / math.sqrt(mean_of([v * v for v in channels_of_token(batch, b, t, c)]) + EPS)


def unit_length(norm, batch, b, t, c):
    return batch[b][t, c].item() / max(math.sqrt(math.fsum([v * v for v in channels_of_token(batch, b, t, c)])), EPS)


def switch(norm, batch, b, t, c):
    neighbourhoods = [near(batch, b, t, c) for near in (channels_of_token, tokens_of_sample, tokens_of_batch)]

    def mixture(logits: Tensor, statistic) -> float:
        weights = [math.exp(v) for v in logits.tolist()]
        return sum(w * statistic(values) for w, values in zip(weights, neighbourhoods, strict=True)) / sum(weights)

    mean, var = mixture(norm.mean_logit, mean_of), mixture(norm.var_logit, variance_of)
    return (batch[b][t, c].item() - mean) / math.sqrt(var + EPS)


def power_at_evaluation(norm, batch, b, t, c):
    d = DIM // HEADS
    head = batch[b][t, c // d * d : c // d * d + d].tolist()
    u = batch[b][t, c].item() / math.sqrt(mean_of([v * v for v in head]) + EPS)
    return u / math.sqrt(norm.running_phi[c].item() + EPS)


CASES = {
    "ln": ({}, standardise(channels_of_token)),
    "rms": ({}, rms),
    "bn": ({}, standardise(tokens_of_batch)),
    "in": ({}, standardise(tokens_of_sample)),
    "in unbiased": ({"unbiased": True}, standardise(tokens_of_sample, correction=1)),
    "gn": ({}, standardise(head_of_sample)),
    "sn": ({}, switch),
    "scale": ({}, unit_length),
    "scale per channel": ({"per_channel": True}, unit_length),
    "dyt": ({}, lambda norm, batch, b, t, c: math.tanh(norm.alpha.item() * batch[b][t, c].item())),
    "derf": ({}, lambda norm, batch, b, t, c: math.erf(norm.alpha.item() * batch[b][t, c].item() + norm.shift.item())),
    "power at evaluation": ({}, power_at_evaluation),
}


def make(case: str, eps: float = EPS, **options) -> Norm:
    norm = create_norm(case.split()[0], DIM, heads=HEADS, eps=eps, dtype=torch.float64, **options, **CASES[case][0])
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter += torch.randn(parameter.shape, generator=noise, dtype=torch.float64)
    if "evaluation" in case:
        norm.running_phi.uniform_(0.5, 2.0, generator=noise)
        norm.eval()
    return norm


def samples(lengths: list[int]) -> list[Tensor]:
    noise = torch.Generator().manual_seed(0)
    return [torch.randn(length, DIM, generator=noise, dtype=torch.float64) * (1 + i) + i for i, length in enumerate(lengths)]


def padded(batch: list[Tensor]) -> tuple[Tensor, Tensor]:
    x = nn.utils.rnn.pad_sequence(batch, batch_first=True, padding_value=float("nan"))
    return x, ~x.isnan().any(-1)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("case", CASES)
def test_equation(case, lengths):
    norm, batch = make(case), samples(lengths)
    x, mask = padded(batch)
    y = norm(x, mask=None if mask.all() else mask)
    weight = norm.weight.expand(DIM).tolist()
    bias = norm.bias.tolist() if norm.bias is not None else [0.0] * DIM
    for b, sample in enumerate(batch):
        for t in range(len(sample)):
            expected = [weight[c] * CASES[case][1](norm, batch, b, t, c) + bias[c] for c in range(DIM)]
            assert y[b, t].tolist() == pytest.approx(expected, rel=1e-11, abs=1e-11)


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("bn", "sn")])
def test_padded_sample_equals_sample_alone(case):
    """Also the gradients, for norms whose statistics stay inside a sample."""
    norm, batch = make(case), samples(LENGTHS["ragged"])
    x, mask = padded(batch)
    x.requires_grad_()
    y = norm(x, mask=mask)
    y.square().sum().backward()
    together = {key: p.grad.clone() for key, p in norm.named_parameters()}
    norm.zero_grad()
    for b, sample in enumerate(batch):
        alone = sample[None].clone().requires_grad_()
        y_alone = norm(alone)
        y_alone.square().sum().backward()
        torch.testing.assert_close(y[b : b + 1, : len(sample)], y_alone)
        torch.testing.assert_close(x.grad[b : b + 1, : len(sample)], alone.grad)
    torch.testing.assert_close(together, {key: p.grad for key, p in norm.named_parameters()})


@pytest.mark.parametrize("case", [case for case in CASES if case.split()[0] not in ("in", "gn", "sn")])
def test_batch_norm_and_token_norms_see_one_bag_of_tokens(case):
    """Samples of unequal length and their tokens laid end to end are the same to norms that do not look at samples."""
    norm, batch = make(case), samples(LENGTHS["ragged"])
    x, mask = padded(batch)
    y = norm(x, mask=mask)
    torch.testing.assert_close(y[mask], norm(torch.cat(batch)[None])[0])


# -------------------------------------------------------------------------------------------- invariances

_noise = torch.Generator().manual_seed(9)


def _positive(*shape: int) -> Tensor:
    return torch.rand(shape, generator=_noise, dtype=torch.float64) * 3 + 0.5


# case -> (scale, shift) of x that the norm removes; the axes that stay free of scale or shift are 1
B, T, D = 3, 5, DIM // HEADS
per_head = _positive(B, 1, HEADS, 1).expand(B, 1, HEADS, D).reshape(B, 1, DIM)
INVARIANCES = {
    "ln": (_positive(B, T, 1), _positive(B, T, 1)),
    "rms": (_positive(B, T, 1), 0),
    "bn": (_positive(1, 1, DIM), _positive(1, 1, DIM)),
    "in": (_positive(B, 1, DIM), _positive(B, 1, DIM)),
    "gn": (per_head, per_head + 1),
    "sn": (_positive(1, 1, 1), _positive(1, 1, 1)),
    "scale": (_positive(B, T, 1), 0),
    "power at evaluation": (_positive(B, T, HEADS, 1).expand(B, T, HEADS, D).reshape(B, T, DIM), 0),
}


@pytest.mark.parametrize("case", INVARIANCES)
def test_what_a_norm_removes(case):
    norm, x = make(case, eps=1e-14), torch.stack(samples(LENGTHS["full"]))
    scale, shift = INVARIANCES[case]
    torch.testing.assert_close(norm(x * scale + shift), norm(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_order_of_tokens_does_not_matter(case):
    norm, x = make(case), torch.stack(samples(LENGTHS["full"]))
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(norm(x[:, order]), norm(x)[:, order])


@pytest.mark.parametrize("name", ["dyt", "derf"])
def test_squashing_is_odd_and_bounded(name):
    norm = create_norm(name, DIM, dtype=torch.float64)
    x = 30 * torch.stack(samples(LENGTHS["full"]))
    torch.testing.assert_close(norm(-x), -norm(x))
    assert norm(x).abs().max() <= 1


def test_alpha_starts_where_asked():
    assert create_norm("dyt", DIM).alpha.tolist() == [0.5]
    assert create_norm("derf", DIM, alpha_init=0.25).alpha.tolist() == [0.25]


def test_scale_norm_starts_at_the_length_of_a_standard_token():
    assert create_norm("scale", 16).weight.tolist() == [4.0]
    assert create_norm("scale", 16, per_channel=True).weight.tolist() == [4.0] * 16


# ------------------------------------------------------------------------------------- against torch's own


def test_torch_has_the_same_layer_norm():
    norm, x = make("ln"), torch.stack(samples(LENGTHS["full"]))
    theirs = nn.LayerNorm(DIM, eps=EPS, dtype=torch.float64)
    theirs.load_state_dict(norm.state_dict())
    assert torch.equal(norm(x), theirs(x))


def test_torch_has_the_same_rms_norm():
    norm, x = make("rms"), torch.stack(samples(LENGTHS["full"]))
    theirs = nn.RMSNorm(DIM, eps=EPS, dtype=torch.float64)
    theirs.load_state_dict(norm.state_dict())
    assert torch.equal(norm(x), theirs(x))


def test_torch_has_the_same_group_norm():
    norm, x = make("gn"), torch.stack(samples(LENGTHS["full"]))
    theirs = nn.GroupNorm(HEADS, DIM, eps=EPS, dtype=torch.float64)
    theirs.load_state_dict(norm.state_dict())
    torch.testing.assert_close(norm(x), theirs(x.mT).mT)


def test_torch_has_the_same_instance_norm():
    norm, x = make("in"), torch.stack(samples(LENGTHS["full"]))
    theirs = nn.InstanceNorm1d(DIM, eps=EPS, affine=True, dtype=torch.float64)
    theirs.load_state_dict(norm.state_dict())
    torch.testing.assert_close(norm(x), theirs(x.mT).mT)


# ------------------------------------------------------------------------------------------------ numerics


@pytest.mark.parametrize("name", ["ln", "bn", "in", "gn", "sn"])
@pytest.mark.parametrize("masked", [False, True])
def test_large_means_do_not_cancel(name, masked):
    """Mean 1e4, standard deviation 1, float32: no worse than twice nn.LayerNorm on the same tokens."""
    x = 1e4 + torch.randn(4, 64, 32, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(4, 64, dtype=torch.bool) if masked else None
    norm = create_norm(name, 32, heads=4)
    exact = create_norm(name, 32, heads=4, dtype=torch.float64)
    error = (norm(x, mask=mask) - exact(x.double())).abs().max()
    layer_norm = nn.LayerNorm(32)
    own_error = (layer_norm(x) - nn.LayerNorm(32, dtype=torch.float64)(x.double())).abs().max()
    assert error <= 2 * own_error
