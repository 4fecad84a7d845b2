"""Size of a model before it is trained."""

import torch

from dynavit.bench.flops import count_macs
from dynavit.bench.size import measure_size
from dynavit.models import create_model


def test_numbers_of_one_sample():
    model = create_model("vit_micro", "bn", depth=1, norm_blocks=1).train()
    image = torch.zeros(1, 3, 8, 8)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    size = measure_size(model, image, training=True)
    assert model.training and all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert size.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (size.grids, size.gmacs) == (((4, 4),), count_macs(model.eval(), image) / 1e9)
    assert size.step_bytes(3) - size.step_bytes(1) == 2 * size.kept_bytes > 0


def test_without_a_sample_there_are_parameters_alone():
    size = measure_size(create_model("dvt_vit_digits", depth=1), None)
    assert (size.grids, size.gmacs, size.step_bytes(8)) == (((2, 2), (4, 4)), None, None)
