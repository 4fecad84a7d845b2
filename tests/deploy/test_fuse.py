"""Structural re-parameterisation: branches become one operator, through `fuse()`."""

import pytest
import torch
from torch import nn

from convert.models import timm_model
from deploy.fold_models import Through, difference, fold, settled
from dynavit.deploy.fold.fuse_branches import fuse_branches

C = 6
IMAGE = torch.randn(2, C, 5, 7, generator=torch.Generator().manual_seed(0)).double()


class RepVGGBlock(nn.Module):
    """3x3 + 1x1 + identity, each with its batch norm."""

    def __init__(self, groups=1):
        super().__init__()
        self.wide = nn.Conv2d(C, C, 3, padding=1, groups=groups, bias=False)
        self.narrow = nn.Conv2d(C, C, 1, groups=groups)
        self.norms = nn.ModuleList(nn.BatchNorm2d(C) for _ in range(3))

    def forward(self, x):
        wide, narrow, identity = self.norms
        return wide(self.wide(x)) + narrow(self.narrow(x)) + identity(x)

    def fuse(self):
        return fuse_branches(list(zip((self.wide, self.narrow, None), self.norms, strict=True)))


class LinearBranches(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(C, C), nn.Linear(C, C, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm1d(C) for _ in range(3))

    def forward(self, x):
        first, second, identity = self.norms
        return first(self.first(x)) + second(self.second(x)) + identity(x)

    def fuse(self):
        return fuse_branches(list(zip((self.first, self.second, None), self.norms, strict=True)))


def test_fold_fuses_blocks_and_then_folds_around_them():
    torch.manual_seed(0)
    blocks = nn.Sequential(nn.BatchNorm2d(C), nn.Conv2d(C, C, 1), RepVGGBlock(), nn.ReLU(), RepVGGBlock(groups=3))
    model = settled(blocks).double()
    folded = fold(model, example=IMAGE)
    assert folded.fold_report.fused == ["2", "4"] and folded.fold_report.count("folded") == 1
    assert difference(model, folded, IMAGE) < 1e-12
    assert isinstance(folded[2], nn.Conv2d) and isinstance(folded[4], nn.Conv2d) and isinstance(model[2], RepVGGBlock)


def test_a_model_that_is_a_block_itself_and_timm_s_tool():
    from timm.utils.model import reparameterize_model

    torch.manual_seed(0)
    block, branches = settled(RepVGGBlock()).double(), settled(LinearBranches()).double()
    assert difference(block, fold(block, example=IMAGE), IMAGE) < 1e-12
    pair = Through(lambda m, x: m.part(x), part=branches).eval()
    flat = IMAGE.permute(0, 2, 3, 1).flatten(0, 2)
    fused = reparameterize_model(pair)
    assert isinstance(fused.part, nn.Linear) and difference(pair, fused, flat) < 1e-12


def test_levit_loses_its_batch_norms():
    model = settled(timm_model("levit_128s", num_classes=3, img_size=64))
    folded = fold(model, example=torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0)))
    assert folded.fold_report.error <= folded.fold_report.limit and len(folded.fold_report.fused) > 40
    assert not any(isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) for module in folded.modules())


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        ([None], "none of 1 has one"),
        ([nn.Conv2d(C, C, 3, padding=1), nn.Conv2d(C, C, 1, padding=1)], "must see the same places"),
        ([nn.Conv2d(C, C, 3, padding=1), nn.Conv2d(C, C, 1, stride=2)], "must see the same places"),
        ([nn.Conv2d(C, C, 3, padding=1), nn.Linear(C, C)], "must see the same places"),
        ([nn.Conv2d(C, C, 3), None], "changes its size"),
        ([nn.Conv2d(C, C, 3, 2, 1), None], "changes its size"),
        ([nn.Linear(C + 1, C), None], "changes the number of channels"),
    ],
)
def test_branches_that_do_not_fit_are_refused(layers, why):
    with pytest.raises(ValueError, match=why):
        fuse_branches([(layer, nn.BatchNorm2d(C).eval()) for layer in layers])


def test_norms_that_are_no_map_are_refused():
    conv = nn.Conv2d(C, C, 1)
    with pytest.raises(ValueError, match="no affine map"):
        fuse_branches([(conv, nn.GroupNorm(2, C).eval())])
    with pytest.raises(ValueError, match="no affine map"):
        fuse_branches([(conv, nn.BatchNorm2d(C, track_running_stats=False).eval())])
    with pytest.raises(ValueError, match="evaluation mode"):
        fuse_branches([(conv, nn.BatchNorm2d(C))])
