"""A new classifier starts as the model's first one did, where the model lives."""

import pytest
import torch
from torch import nn

from dynavit import create_model


@pytest.mark.parametrize("name", ["test_vit", "test_sequence"])
def test_a_reset_head_starts_like_the_first(name):
    model = create_model(name).double()
    for parameter in model.head.parameters():
        nn.init.ones_(parameter)
    model.reset_classifier(1000)
    assert model.head.weight.shape[0] == 1000 and model.head.weight.dtype == torch.float64
    assert model.head.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert not model.head.bias.any()
