"""Norms of a model by name."""

import torch
from torch import nn

from dynavit.convert.norm_kinds import norm_kinds
from dynavit.models import create_model


def test_kinds_are_names_of_ours():
    with torch.device("meta"):
        assert norm_kinds(create_model("vit_micro", "dtn", depth=2)) == {"dtn": 4, "ln": 1}
        assert norm_kinds(create_model("dvt_vit_digits", depth=1)).keys() == {"ln"}
        assert norm_kinds(create_model("vit_tiny_patch16_224", depth=1)) == {"ln": 3}
        assert norm_kinds(create_model("resnet18")).keys() == {"bn"}
    assert norm_kinds(nn.Linear(2, 2)) == {}
