"""A fold that is not the same function does not pass."""

import copy

import pytest
import torch
from torch import nn

from deploy.fold_models import Through
from dynavit.deploy.fold.verify import verify_fold


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).eval()


@pytest.fixture
def images():
    return torch.randn(16, 4, generator=torch.Generator().manual_seed(0))


def test_the_same_model_passes_with_its_own_error(model, images):
    measured = verify_fold(model, copy.deepcopy(model), images)
    assert measured.error == measured.own_error > 0 and measured.limit == 1e-5 and measured.changed == 0


@pytest.mark.parametrize("size", [1e-3, float("nan")])
def test_a_sabotaged_fold_fails(model, images, size):
    other = copy.deepcopy(model)
    other[2].weight.data[0, 0] += size
    with pytest.raises(ValueError, match="differs from its source"):
        verify_fold(model, other, images)


def test_the_limit_follows_the_rounding_error_of_the_source(images):
    # 1e6 - 1e6: what is left of the input after float32 rounding has an error of a few percent.
    rounds = Through(lambda m, x: (x + 1e6) - 1e6).eval()
    exact = Through(lambda m, x: x).eval()
    measured = verify_fold(rounds, exact, images)
    assert measured.limit == pytest.approx(10 * measured.own_error) and measured.own_error > 1e-3


def test_tuples_are_compared_exit_by_exit(model, images):
    both = Through(lambda m, x: (m.part(x), 3 * m.part(x)), part=model).eval()
    wrong = Through(lambda m, x: (m.part(x) + 0.01, 3 * m.part(x)), part=model).eval()
    assert verify_fold(both, copy.deepcopy(both), images).changed == 0
    with pytest.raises(ValueError, match="differs from its source"):
        verify_fold(both, wrong, images)


def test_a_small_output_is_not_hidden_by_a_large_one(model, images):
    both = Through(lambda m, x: (m.part(x), 1e7 * m.part(x)), part=model).eval()
    wrong = Through(lambda m, x: (m.part(x) + 0.01, 1e7 * m.part(x)), part=model).eval()
    assert verify_fold(both, copy.deepcopy(both), images).error < 1e-6
    with pytest.raises(ValueError, match="differs from its source"):
        verify_fold(both, wrong, images)


def test_token_numbers_stay_numbers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3)).eval()
    assert verify_fold(model, copy.deepcopy(model), torch.tensor([[0, 3], [1, 4]])).error < 1e-6


def test_other_shapes_and_training_mode_are_errors(model, images):
    with pytest.raises(ValueError, match=r"returns \[\(16, 8\)\], its source \[\(16, 3\)\]"):
        verify_fold(model, model[0], images)
    with pytest.raises(ValueError, match="evaluation mode"):
        verify_fold(model, copy.deepcopy(model).train(), images)
