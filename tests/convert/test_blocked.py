"""Tokens cut into blocks of the image, (b, m, n, c): norms see the image's neighbours, in whatever order tokens come."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import dynavit
from convert.models import timm_model
from dynavit.common.torchvision_shim import ensure_torchvision
from dynavit.convert import MissingGridError, plan_swap, swap_norms, token_grid
from dynavit.convert.blocked import cut, on_grid, side_of


def by_hand(x, layout, grid, side):
    """(b, m, n, c) -> (b, rows, cols, c), cell by cell."""
    rows, cols = grid
    y = x.new_empty(x.shape[0], rows, cols, x.shape[3])
    for row in range(rows):
        for col in range(cols):
            block = (row // side) * (cols // side) + col // side
            cell = (row % side) * side + col % side
            y[:, row, col] = x[:, block, cell] if layout == "blocks" else x[:, cell, block]
    return y


@pytest.mark.parametrize("layout", ["blocks", "strided"])
def test_on_the_grid_and_cut_again(layout):
    shape = (2, 6, 4, 5) if layout == "blocks" else (2, 4, 6, 5)  # six blocks of 2x2 cells on a 4x6 grid
    x = torch.randn(shape)
    assert side_of(layout, shape, (4, 6)) == 2
    assert torch.equal(on_grid(x, layout, (4, 6), 2), by_hand(x, layout, (4, 6), 2))
    assert torch.equal(cut(on_grid(x, layout, (4, 6), 2), layout, 2), x)
    assert side_of(layout, shape, (3, 8)) is None and side_of(layout, shape, (4, 4)) is None
    assert side_of("blocks", (2, 4, 6, 5), (4, 6)) is None  # six cells are no square


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dim), BlockAttention(dim, heads)
        self.norm2, self.mlp = nn.LayerNorm(dim), nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class BlockAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.num_heads, self.qkv = heads, nn.Linear(dim, 3 * dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).movedim(-3, 0).transpose(-2, -3)
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(-2, -3).flatten(-2)


class Blocked(nn.Module):
    """Windows of 4x4 cells, then the same cell of every window; on a 16x16 grid both are (b, 16, 16, c), as the map is."""

    def __init__(self, orders=("blocks", "strided"), checkpointed=False):
        super().__init__()
        self.stem, self.checkpointed, self.orders = nn.Conv2d(3, 8, 4, 4), checkpointed, orders
        self.layers = nn.ModuleList(Layer(8, 2) for _ in orders)

    def forward(self, image):
        x = self.stem(image).permute(0, 2, 3, 1)
        for order, layer in zip(self.orders, self.layers, strict=True):
            y = cut(x, order, 4) if order != "map" else x
            y = checkpoint(layer, y, use_reentrant=False) if self.checkpointed else layer(y)
            x = on_grid(y, order, (x.shape[1], x.shape[2]), 4) if order != "map" else y
        return x.mean((1, 2))


@pytest.mark.parametrize("orders", [("blocks", "strided"), ("strided", "blocks", "map"), ("map", "strided")])
@pytest.mark.parametrize("norm", ["dtn", "in"])
def test_the_order_is_measured_and_neighbours_are_those_of_the_image(norm, orders):
    torch.manual_seed(0)
    model = Blocked(orders).double()
    swapped = swap_norms(model, norm, start="fresh", input_size=64)
    if norm == "dtn":
        assert [row.layout for row in swapped.swap_plan.swapped()] == [order for order in orders for _ in range(2)]
    for order, layer in zip(orders, swapped.layers, strict=True):
        plain = copy.deepcopy(layer.norm1)
        plain._forward_hooks.clear(), plain._forward_pre_hooks.clear()
        grid = (16, 8)
        tokens = torch.randn(2, *grid, 8, dtype=torch.float64)
        with token_grid(*grid):
            cut_tokens = tokens if order == "map" else cut(tokens, order, 4)
            y = layer.norm1(cut_tokens)
        back = y if order == "map" else by_hand(y, order, grid, 4)
        torch.testing.assert_close(back, plain(tokens), rtol=1e-12, atol=1e-12)


def test_other_resolutions_checkpoints_and_copies():
    torch.manual_seed(0)
    swapped = swap_norms(Blocked().double(), "dtn", start="near", input_size=64)
    again = swap_norms(Blocked(checkpointed=True).double(), "dtn", start="near", input_size=64)
    again.load_state_dict(swapped.state_dict())
    small, wide = torch.randn(2, 3, 64, 32, dtype=torch.float64), torch.randn(2, 3, 32, 64, dtype=torch.float64)
    for model in (swapped, again):  # two forward passes of as many tokens before one backward pass
        (model(small).square().sum() + model(wide).square().sum()).backward()
    for mine, other in zip(swapped.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-9, atol=1e-12)
    with pytest.raises(MissingGridError, match="no square blocks"), token_grid(2, 128):
        swapped.layers[0].norm1(torch.randn(1, 16, 16, 8, dtype=torch.float64))


def test_stored(tmp_path):
    model = swap_norms(Blocked(), "dtn", start="near", input_size=64).eval()
    x = torch.randn(2, 3, 64, 64)
    dynavit.save_swapped(model, tmp_path)
    assert torch.equal(dynavit.load_swapped(tmp_path, Blocked())(x), model(x))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo looks at hooked modules
def test_compiled_and_exported():
    model = swap_norms(Blocked(), "dtn", start="near", input_size=64).eval()
    x = torch.randn(2, 3, 64, 64)
    for other in (
        torch.compile(model, fullgraph=True, backend="aot_eager"),
        torch.export.export(model, (x,), strict=False).module(),
    ):
        torch.testing.assert_close(other(x), model(x), rtol=1e-4, atol=1e-5)


def test_nest_and_maxvit():
    nest_class = type(timm_model("nest_tiny", img_size=64))
    nest = nest_class(64, embed_dims=(12, 24, 48), num_heads=3, depths=(1, 1, 2), num_classes=3).eval()
    ensure_torchvision()
    import torchvision

    maxvit = torchvision.models.MaxVit((56, 56), 8, 7, [8, 16], [1, 1], 4, 0.0, num_classes=3).eval()
    x = torch.randn(2, 3, 64, 64)
    same = swap_norms(nest, "dtn", start="identity", input_size=64)
    assert tuple(same.swap_plan.counts().values()) == (8, 3, 0)
    assert {row.layout for row in same.swap_plan.swapped()} == {"blocks"}
    torch.testing.assert_close(same(x), nest(x), rtol=1e-5, atol=1e-5)
    same = swap_norms(maxvit, "dtn", start="identity", input_size=56)
    layouts = [row.layout for row in same.swap_plan.swapped()]
    assert layouts[:4] == ["blocks", "blocks", "strided", "strided"] and len(layouts) == 8
    torch.testing.assert_close(same(x[..., :56, :56]), maxvit(x[..., :56, :56]), rtol=1e-5, atol=1e-5)


def test_without_weights_nothing_is_guessed():
    with torch.device("meta"):
        model = Blocked()
    plan = plan_swap(model, "dtn", input_size=32)
    assert plan.counts()["swap"] == 0 and "cannot be measured on meta" in plan.rows[0].reason
    assert plan_swap(model, "dtn", input_size=64).counts()["swap"] == 4  # as ever: by shapes, where they are a map's
