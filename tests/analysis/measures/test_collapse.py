"""Information in codes and the rank of features, where they are known in closed form."""

import math

import pytest
import torch

from dynavit.analysis.measures.collapse import code_measures, effective_rank


def measures(codes):
    codes = codes.double()
    entropies = -torch.xlogy(codes, codes).sum(-1)
    return code_measures(codes.sum(0), entropies.sum(), len(codes))


def test_uniform_codes_and_one_prototype_tell_nothing():
    uniform, single = torch.full((200, 16), 1 / 16), torch.eye(16)[[3] * 200]
    assert measures(uniform)["information"] == pytest.approx(0, abs=1e-12)
    assert measures(uniform)["code_entropy"] == pytest.approx(math.log(16))
    assert measures(single)["information"] == 0 and measures(single)["mean_code_entropy"] == 0


def test_distinct_codes_tell_all_there_is():
    assert measures(torch.eye(128))["information"] == pytest.approx(math.log(128)) == pytest.approx(4.852, abs=1e-3)
    assert measures(torch.eye(128))["information_share"] == pytest.approx(1)
    assert measures(torch.eye(128)[:32])["information_share"] == pytest.approx(1)  # of ln 32, with 32 images


def test_information_is_the_mean_divergence_from_the_mean_code():
    codes = torch.rand(50, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(-1)
    mean = codes.mean(0)
    divergence = (codes * (codes / mean).log()).sum(-1).mean()
    assert measures(codes)["information"] == pytest.approx(float(divergence))


def test_effective_rank():
    same = torch.ones(30, 1, dtype=torch.float64) @ torch.rand(1, 6, generator=torch.Generator().manual_seed(0)).double()
    assert effective_rank(same.T @ same) == pytest.approx(1, abs=1e-4)
    assert effective_rank(torch.eye(6)) == pytest.approx(6)
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    share = torch.linalg.svdvals(x) / torch.linalg.svdvals(x).sum()
    assert effective_rank(x.T @ x) == pytest.approx(float(torch.exp(-(share * share.log()).sum())))
