"""Norm calls: what stands before and after, on which grid, with how many heads."""

import pytest
import torch
from torch import nn

import dynavit
from analysis.probes.tiny_models import arguments_of, from_timm, images, inputs_of, norm_calls, own, swin, vit
from dynavit.analysis.probes import attention_paths, norm_sites, observe, require


def test_before_and_after_are_what_the_norm_does():
    model, x = own("test_vit", "dtn"), images(2, 3, 32, 32)
    calls = norm_calls(model, x)
    assert [(call.path, call.site, call.heads, call.prefix) for call in calls] == [
        (f"blocks.{i}.norm{n}", site, 4, int(i == 2)) for i in range(3) for n, site in ((1, "attn"), (2, "mlp"))
    ]
    inputs = inputs_of(model, x, [call.path for call in calls])
    for call in calls:
        assert call.norm is model.get_submodule(call.path) and call.grid == (4, 4)
        assert torch.equal(call.before, inputs[call.path])
        assert torch.equal(call.after, call.norm(call.before, (4, 4)))


def test_swins_norms_lie_on_the_grid_of_their_block_swapped_or_not():
    model, x = swin((40, 56), depths=(1, 1), num_heads=(2, 4)), images(2, 3, 40, 56)
    for each in (model, dynavit.swap_norms(model, "dtn")):
        calls = norm_calls(each, x)
        assert [(call.path, call.grid, call.heads, call.before.shape[1:]) for call in calls] == [
            (f"layers.{i}.blocks.0.norm{n}", grid, heads, shape)
            for i, grid, heads, shape in ((0, (10, 14), 2, (140, 16)), (1, (5, 7), 4, (35, 32)))
            for n in (1, 2)
        ]
        (tokens,) = arguments_of(each, x, ["layers.0.blocks.0.norm1"]).values()
        assert tokens[0].shape == (2, 10, 14, 16)
        assert torch.equal(calls[0].before, tokens[0].flatten(1, 2))
        assert torch.equal(calls[0].after, calls[0].norm(tokens[0]).flatten(1, 2))


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ChannelsFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 4, 4)
        self.block = nn.Module()
        self.block.norm1, self.block.attn = LayerNorm2d(8), nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        x = self.block.norm1(self.embed(x)).flatten(2).transpose(1, 2)
        return self.block.attn(x, x, x)[0]


def test_channels_first_norms_are_handed_over_as_tokens_swapped_or_not():
    torch.manual_seed(0)
    model, x = ChannelsFirst().eval(), images(2, 3, 16, 24)
    tokens = model.embed(x).flatten(2).transpose(1, 2)
    swapped = dynavit.swap_norms(model, "dtn", input_size=(3, 16, 24))
    for each, after in ((model, nn.LayerNorm(8)(tokens)), (swapped, swapped.block.norm1.transform(tokens, (4, 6), None))):
        (call,) = norm_calls(each, x)
        assert call.grid == (4, 6) and torch.allclose(call.before, tokens, atol=1e-6)
        assert torch.allclose(call.after, after, atol=1e-5)


def test_grids_of_the_pyramid_and_of_timms():
    calls = norm_calls(own("test_pvt"), images(2, 3, 32, 48))
    assert [(call.grid, call.prefix) for call in calls[::2]] == [((16, 24), 0), ((8, 12), 0), ((4, 6), 0), ((2, 3), 1)]
    small = {"embed_dims": (8, 8, 16, 16), "depths": (1, 1, 1, 1), "num_heads": (1, 2, 2, 2)}
    calls = norm_calls(from_timm("pvt_v2", "PyramidVisionTransformerV2", **small), images(2, 3, 64, 96))
    assert [call.grid for call in calls[::2]] == [(16, 24), (8, 12), (4, 6), (2, 3)]
    calls = norm_calls(vit(reg_tokens=4), images(2, 3, 32, 32))
    assert {(call.grid, call.prefix) for call in calls} == {((4, 4), 5)}


def test_a_cascades_norms_and_their_heads():
    """Exit 1 reuses 12 channels of exit 0: LayerNorm sees them behind the tokens' 48, DTN head by head."""
    for norm, own_heads in (("ln", 1), ("dtn", 4)):
        calls = {call.path: call for call in norm_calls(own("dvt_vit_digits", norm, in_chans=1), images(2, 1, 8, 8))}
        assert calls["exits.0.blocks.0.norm1"].heads == calls["exits.1.blocks.2.norm1"].heads == 4
        assert calls["exits.1.blocks.0.norm2"].before.shape[-1] == 60
        assert calls["exits.1.blocks.0.norm2"].heads == own_heads
        reused = calls["exits.1.blocks.0.feature_reuse.norm"]  # reads the tokens of the exit before
        assert reused.site == "other" and reused.grid == (2, 2) and calls["exits.1.blocks.0.norm1"].grid == (4, 4)


def test_norms_of_class_tokens_alone_are_left_out():
    small = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
    calls = norm_calls(from_timm("cait", "Cait", **small), images(2, 3, 32, 32))
    assert {call.path: call.prefix for call in calls} == {
        "blocks.0.norm1": 0,
        "blocks.0.norm2": 0,
        "blocks_token_only.0.norm1": 1,
        "blocks_token_only.1.norm1": 1,
    }


def test_sites_are_known_without_running():
    sites = norm_sites(own("test_pvt"))
    assert [(site.path, site.block, site.site, site.heads) for site in sites[:3]] == [
        ("block1.0.norm1", "block1.0", "attn", 1),
        ("block1.0.norm2", "block1.0", "mlp", 1),
        ("block2.0.norm1", "block2.0", "attn", 2),
    ]
    assert len(sites) == 8  # none of patch embedding, spatial reduction, or the end
    assert attention_paths(own("test_pvt")) == [f"block{stage}.0.attn" for stage in (1, 2, 3, 4)]


class LinearPatches(nn.Module):
    """No convolution tells of the grid."""

    def __init__(self, patch):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(patch[0] * patch[1], 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 8))

    def forward(self, x):
        patches = x.unfold(2, self.patch[0], self.patch[0]).unfold(3, self.patch[1], self.patch[1]).flatten(4).flatten(1, 3)
        return self.block(torch.cat([self.cls_token.expand(len(x), -1, -1), self.embed(patches)], 1))


def test_without_a_map_the_grid_is_shaped_like_the_image():
    calls = norm_calls(LinearPatches((2, 2)).eval(), images(2, 1, 4, 16))
    assert [(call.grid, call.prefix) for call in calls] == [((2, 8), 1)] * 2


def test_a_grid_that_cannot_be_found_is_an_error():
    with pytest.raises(ValueError, match=r"block\.norm1: 33 tokens lie on no known grid.*none were seen.*0 to 8.*image"):
        norm_calls(LinearPatches((2, 1)).eval(), images(2, 1, 4, 16))


def test_windows_of_unknown_order_are_an_error():
    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Conv2d(1, 8, 2, 2)
            self.attn = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            x = self.embed(x).flatten(2).transpose(1, 2).unflatten(1, (2, -1)).flatten(0, 1)
            return self.attn(x, x, x)[0]

    with pytest.raises(ValueError, match="attn: it attends to 2 groups of 8 tokens in each image.*window_size"):
        observe(Halves().eval(), images(3, 1, 8, 8), on_attention=print)


def test_a_model_without_norms_or_attention_says_what_it_has():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    with pytest.raises(ValueError, match="no attention.*BatchNorm2d, Conv2d, ReLU, Sequential"):
        observe(model, images(2, 3, 8, 8), on_attention=print)
    with pytest.raises(ValueError, match="no norm in a block.*BatchNorm2d, Conv2d, ReLU, Sequential"):
        observe(model, images(2, 3, 8, 8), on_norm=print)


def test_attention_without_a_softmax_says_so():
    class LinearAttention(nn.Module):
        num_heads = 2

        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(8, 24)

        def forward(self, x):
            q, k, v = self.qkv(x.flatten(2).mT).sigmoid().chunk(3, -1)
            return q @ (k.mT @ v)

    model = nn.Sequential(nn.Conv2d(3, 8, 2, 2), LinearAttention())
    with pytest.raises(ValueError, match="no attention of the model made a softmax over tokens.*LinearAttention"):
        observe(model, images(2, 3, 4, 16), on_attention=print)


def test_images_are_asked_for():
    with pytest.raises(ValueError, match=r"images \(batch, channels, height, width\).*got \(3, 32, 32\)"):
        observe(own("test_vit"), images(3, 32, 32), on_norm=print)
    with pytest.raises(ValueError, match="at least one"):
        observe(own("test_vit"), images(0, 3, 32, 32), on_norm=print)


def test_a_wrong_name_lists_what_exists():
    known = attention_paths(own("test_vit"))
    assert require("attention", ["blocks.1.attn"], known) == ["blocks.1.attn"]
    with pytest.raises(ValueError, match=r"unknown attention 'block\.1\.attn'.*mean 'blocks\.1\.attn'.*Known: blocks\.0\.attn"):
        require("attention", ["block.1.attn"], known)
