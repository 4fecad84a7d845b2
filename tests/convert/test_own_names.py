"""A transformer whose author chose other names than the libraries do."""

import torch
from torch import nn

from dynavit.convert import plan_swap, swap_norms


class Block(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.n1, self.a = nn.LayerNorm(dim), nn.MultiheadAttention(dim, 2, batch_first=True)
        self.n2, self.m = nn.LayerNorm(dim), nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, dim))

    def forward(self, x):
        y = self.n1(x)
        x = x + self.a(y, y, y, need_weights=False)[0]
        return x + self.m(self.n2(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 8, 8)
        self.layers = nn.Sequential(Block(), Block())
        self.out = nn.Linear(16, 5)

    def forward(self, image):
        return self.out(self.layers(self.patches(image).flatten(2).transpose(1, 2)).mean(1))


def test_both_norms_of_each_block_are_found():
    plan = plan_swap(Net(), "dtn", input_size=32)
    assert plan.counts() == {"swap": 4, "keep": 0, "refuse": 0}, str(plan)
    assert [row.site for row in plan.rows] == ["attn", "mlp"] * 2


def test_identity_is_the_same_network():
    net, images = Net().eval(), torch.randn(2, 3, 32, 48)
    same = swap_norms(net, "dtn", start="identity", input_size=32)
    torch.testing.assert_close(same(images), net(images), rtol=1e-4, atol=1e-5)
