"""The weights that probes see against the formula, written out for each kind of attention with the tokens its places name."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynavit
from analysis.probes.tiny_models import arguments_of, attention_calls, from_timm, images, inputs_of, own, swin, vit
from dynavit.analysis.probes import attention_paths, observe
from dynavit.analysis.probes.weights import SeeWeights


def heads(x, count):
    """(..., t, c) -> (..., h, t, d)"""
    return x.unflatten(-1, (count, -1)).transpose(-2, -3)


def from_qkv(attn, x):
    """softmax(q k^T / sqrt(d)) of tokens x (..., t, c): (..., h, t, t)."""
    q, k, _ = (heads(part, attn.num_heads) for part in attn.qkv(x).chunk(3, -1))
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)


@pytest.mark.parametrize("make", [lambda: own("test_vit", "dtn"), lambda: own("test_t2t")], ids=["late class token", "t2t"])
def test_own_vit(make):
    model, x = make(), images(2, 3, 32, 32)
    calls, inputs = attention_calls(model, x), inputs_of(model, x, attention_paths(model))
    assert list(calls) == attention_paths(model) == [f"blocks.{i}.attn" for i in range(len(model.blocks))]
    for i, (path, call) in enumerate(calls.items()):
        assert torch.allclose(call.weights[:, 0], from_qkv(model.get_submodule(path), inputs[path]), atol=1e-6)
        prefix = model.prefix_tokens(i)
        assert call.grid == (4, 4) and call.weights.shape == (2, 1, 4, 16 + prefix, 16 + prefix)
        assert call.queries.shape == call.keys.shape == (1, 16 + prefix, 2)
        assert bool(call.keys[0, :prefix].isnan().all()) and call.keys[0, prefix + 6].tolist() == [1, 2]


@pytest.mark.parametrize("fused", [True, False])
def test_timm_vit(fused):
    model, x = vit(reg_tokens=2), images(2, 3, 32, 64)  # 4 x 4 patches were built for, 4 x 8 come
    model.set_input_size((32, 64))
    for block in model.blocks:
        block.attn.fused_attn = fused
    calls, inputs = attention_calls(model, x), inputs_of(model, x, attention_paths(model))
    for path, call in calls.items():
        assert torch.allclose(call.weights[:, 0], from_qkv(model.get_submodule(path), inputs[path]), atol=1e-6)
        assert call.grid == (4, 8) and call.keys.isnan().any(-1).sum() == 3
    assert len(calls) == 2


def reduced(attn, x, call, grid, reduction):
    """PVT: keys are means under a convolution of whole cells; the places say which patches these are."""
    cells = call.keys[0].flatten(0, -2)
    within = torch.arange(reduction) - (reduction - 1) / 2
    sources = []
    for row, col in cells.tolist():
        rows, cols = (row + within).long(), (col + within).long()
        patch = x.unflatten(1, grid)[:, rows][:, :, cols]  # (b, reduction, reduction, c)
        sources.append(torch.einsum("brck,okrc->bo", patch, attn.sr.weight) + attn.sr.bias)
    k = heads(attn.kv(attn.norm(torch.stack(sources, 1))).chunk(2, -1)[0], attn.num_heads)
    q = heads(attn.q(x), attn.num_heads)
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)


@pytest.mark.parametrize("library", ["own", "timm"])
def test_pvt(library):
    if library == "own":
        model, path, x = own("test_pvt", reductions=(3, 2, 1, 1), img_size=(32, 40)), "block1.0.attn", images(2, 3, 32, 40)
        grid, centres = (16, 20), ([1.0, 4.0, 7.0, 10.0, 13.0], [1.0, 4.0, 7.0, 10.0, 13.0, 16.0])
    else:
        small = {"embed_dims": (8, 8, 16, 16), "depths": (1, 1, 1, 1), "num_heads": (2, 2, 2, 2), "sr_ratios": (3, 2, 2, 1)}
        model, path = from_timm("pvt_v2", "PyramidVisionTransformerV2", **small), "stages.0.blocks.0.attn"
        x, grid, centres = images(2, 3, 32, 44), (8, 11), ([1.0, 4.0], [1.0, 4.0, 7.0])
    call, attn = attention_calls(model, x)[path], model.get_submodule(path)
    tokens = inputs_of(model, x, [path])[path]
    # The last rows and columns do not fill a cell: they answer nothing.
    assert call.grid == grid and call.keys[0].tolist() == [[row, col] for row in centres[0] for col in centres[1]]
    assert call.queries[0, grid[1] + 2].tolist() == [1, 2]
    assert torch.allclose(call.weights[:, 0], reduced(attn, tokens, call, grid, 3), atol=1e-6)


def test_own_pvts_class_token_joins_in_the_last_stage():
    calls = list(attention_calls(own("test_pvt"), images(2, 3, 32, 32)).values())
    assert [call.grid for call in calls] == [(16, 16), (8, 8), (4, 4), (2, 2)]
    assert [call.keys.shape[1] for call in calls] == [4, 4, 4, 5]
    assert calls[1].keys[0].tolist() == [[1.5, 1.5], [1.5, 5.5], [5.5, 1.5], [5.5, 5.5]]
    assert bool(calls[3].queries[0, 0].isnan().all()) and calls[3].queries[0, 4].tolist() == [1, 1]


def test_adaptive_pooling_of_keys():
    small = {"embed_dims": (8, 8, 16, 16), "depths": (1, 1, 1, 1), "num_heads": (2, 2, 2, 2), "linear": True}
    model, x = from_timm("pvt_v2", "PyramidVisionTransformerV2", **small), images(2, 3, 56, 64)
    keys = attention_calls(model, x)["stages.0.blocks.0.attn"].keys[0].unflatten(0, (7, 7))
    assert keys[:, 0, 0].tolist() == [0.5, 2.5, 4.5, 6.5, 8.5, 10.5, 12.5]  # 14 rows in 7 cells
    assert keys[0, :, 1].tolist() == [1.0, 3.0, 5.0, 7.5, 10.0, 12.0, 14.0]  # 16 columns: cells of 3 or 4 that overlap


def tokens_at(places, on_map):
    """Of a map (b, rows, cols, c) the tokens at places (w, n, 2), zeros for padding: (b, w, n, c)."""
    row, col = places.nan_to_num().long().unbind(-1)
    return on_map[:, row, col] * ~places.isnan().any(-1)[..., None]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("size", [64, (40, 56)], ids=["whole windows", "padding"])
def test_swin(size, fused):
    model = swin(size)
    grid = model.patch_embed.grid_size
    x = images(2, 3, *(4 * side for side in grid))
    blocks = [f"layers.0.blocks.{i}" for i in (0, 1)]
    for path in blocks:
        model.get_submodule(path).attn.fused_attn = fused
    calls, inputs = attention_calls(model, x), inputs_of(model, x, blocks)
    for path in blocks:
        block, call = model.get_submodule(path), calls[f"{path}.attn"]
        places = call.queries
        assert call.grid == grid and torch.equal(places.nan_to_num(-1), call.keys.nan_to_num(-1))
        q, k, _ = (heads(p, 2) for p in block.attn.qkv(tokens_at(places, block.norm1(inputs[path]))).chunk(3, -1))
        logits = q @ k.mT / math.sqrt(q.shape[-1]) + block.attn._get_rel_pos_bias()
        if block.attn_mask is not None:
            logits = logits + block.attn_mask[:, None]
        assert torch.allclose(call.weights, logits.softmax(-1), atol=1e-5)


def test_swin_v2():
    small = {"img_size": 32, "patch_size": 4, "window_size": 4, "embed_dim": 16, "depths": (2,), "num_heads": (2,)}
    model, x = from_timm("swin_transformer_v2", "SwinTransformerV2", **small), images(2, 3, 32, 32)
    call = attention_calls(model, x)["layers.0.blocks.1.attn"]
    assert call.weights.shape == (2, 4, 2, 16, 16) and call.grid == (8, 8)
    # Shifted by 2: the first window begins at (2, 2); the last one is cut out of all four corners.
    assert call.queries[0, 0].tolist() == [2, 2] and call.queries[0, 15].tolist() == [5, 5]
    assert [call.queries[3, i].tolist() for i in (0, 3, 12, 15)] == [[6, 6], [6, 1], [1, 6], [1, 1]]
    # Cosine attention of the block's input: without a bias the logits would be tau cos(q, k).
    block = model.layers[0].blocks[1]
    tokens = tokens_at(call.queries, inputs_of(model, x, ["layers.0.blocks.1"])["layers.0.blocks.1"])
    attn = block.attn
    q, k, _ = (
        heads(part, 2)
        for part in (tokens @ attn.qkv.weight.T + torch.cat([attn.q_bias, 0 * attn.q_bias, attn.v_bias])).chunk(3, -1)
    )
    table = attn.cpb_mlp(attn.relative_coords_table).view(-1, 2)
    bias = 16 * table[attn.relative_position_index].sigmoid().permute(2, 0, 1)
    logits = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * attn.logit_scale.exp() + bias + block.attn_mask[:, None]
    assert torch.allclose(call.weights, logits.softmax(-1), atol=1e-5)


@pytest.mark.parametrize("reuse", [True, False])
def test_cascade(reuse):
    """The first exit keeps its logits and takes a softmax, the second adds them to its own inside fused attention."""
    model, x = own("dvt_vit_digits", in_chans=1, relation_reuse=reuse), images(3, 1, 8, 8)
    calls, arguments = attention_calls(model, x), arguments_of(model, x, attention_paths(model))
    assert len(calls) == 6
    for path, call in calls.items():
        coarse = path.startswith("exits.0")
        assert call.grid == ((2, 2) if coarse else (4, 4)) and bool(call.keys[0, 0].isnan().all())
        tokens, bias, _ = arguments[path]
        assert (bias is not None) == (reuse and not coarse)
        q, k, _ = (heads(part, 4) for part in model.get_submodule(path).qkv(tokens).chunk(3, -1))
        logits = q @ k.mT / math.sqrt(q.shape[-1]) + (0 if bias is None else bias)
        assert torch.allclose(call.weights[:, 0], logits.softmax(-1), atol=1e-6)


def test_levits_downsampling_asks_from_every_second_token():
    small = {"img_size": (48, 80), "embed_dim": (32, 32), "key_dim": 8, "depth": (1, 1), "num_heads": (2, 2)}
    model, x = from_timm("levit", "Levit", **small), images(2, 3, 48, 80)
    calls = attention_calls(model, x)
    path = "stages.1.downsample.attn_downsample"
    call, attn = calls[path], model.get_submodule(path)
    assert [each.grid for each in calls.values()] == [(3, 5), (2, 3), (2, 3)]
    assert call.queries[0].tolist() == [[row, col] for row in range(2) for col in range(3)]
    # In the queries' patches a key at (1, 3) of its own grid stands at (0.5, 1.5).
    assert call.keys[0, 8].tolist() == [0.5, 1.5]
    on_map = inputs_of(model, x, [path])[path].unflatten(1, (3, 5))
    q = heads(attn.q.ln(tokens_at(2 * call.queries, on_map)[:, 0]), 4)
    kv = attn.kv(tokens_at(2 * call.keys, on_map)[:, 0]).unflatten(-1, (4, -1)).transpose(1, 2)
    logits = q @ kv[..., :8].mT / math.sqrt(8) + attn.attention_biases[:, attn.attention_bias_idxs]
    assert torch.allclose(call.weights[:, 0], logits.softmax(-1), atol=1e-5)


def test_swapped_models_are_seen_alike():
    model, x = swin((40, 56)), images(2, 3, 40, 56)
    before = attention_calls(model, x)["layers.0.blocks.1.attn"]
    after = attention_calls(dynavit.swap_norms(model, "dtn", start="near"), x)["layers.0.blocks.1.attn"]
    assert (
        torch.equal(before.queries.nan_to_num(-1), after.queries.nan_to_num(-1)) and before.weights.shape == after.weights.shape
    )


def test_class_attention_asks_from_nowhere():
    small = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
    calls = attention_calls(from_timm("cait", "Cait", **small), images(2, 3, 32, 32))
    assert calls["blocks.0.attn"].weights.shape == (2, 1, 2, 16, 16)
    call = calls["blocks_token_only.0.attn"]
    assert call.weights.shape == (2, 1, 2, 1, 17) and call.grid == (4, 4) and bool(call.queries.isnan().all())
    assert bool(call.keys[0, 0].isnan().all()) and call.keys[0, 16].tolist() == [3, 3]


def test_channel_attention_is_left_out():
    """16 channels of a head attend to each other; that there are also 16 tokens must not confuse."""
    small = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "cls_attn_layers": 1, "num_heads": 2, "eta": 1.0}
    model = from_timm("xcit", "Xcit", **small)
    assert list(attention_calls(model, images(2, 3, 32, 32))) == attention_paths(model) == ["cls_attn_blocks.0.attn"]


class Twice(nn.Module):
    """One attention, used twice."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(1, 8, 2, 2)
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        for _ in range(2):
            x = x + self.attn(x, x, x, need_weights=False)[0]
        return x


def test_a_shared_attention_gives_a_call_each_time_also_torchs_own():
    torch.manual_seed(0)
    model, x, calls = Twice().eval(), images(3, 1, 4, 6), []
    observe(model, x, on_attention=calls.append)
    assert [call.path for call in calls] == ["attn", "attn"] and calls[0].grid == (2, 3)
    tokens = model.embed(x).flatten(2).transpose(1, 2)
    expected = model.attn(tokens, tokens, tokens, average_attn_weights=False)[1]
    assert torch.allclose(calls[0].weights[:, 0], expected, atol=1e-6)
    assert not torch.allclose(calls[1].weights[:, 0], expected, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": 0.7},
        {"is_causal": True},
        {"attn_mask": torch.ones(3, 5, dtype=torch.bool).tril(1)},
        {"attn_mask": torch.linspace(-1, 1, 15).view(3, 5)},
        {"enable_gqa": True},
    ],
    ids=["plain", "scale", "causal", "bool mask", "float mask", "grouped queries"],
)
def test_fused_attention_is_what_the_weights_say(options):
    seen = []
    q = images(2, 4, 3, 8)
    k, v = images(2, 2, 4, 5, 8)[:, :, : 2 if "enable_gqa" in options else 4]
    with SeeWeights(seen.append):
        y = F.scaled_dot_product_attention(q, k, v, **options)
    assert torch.equal(y, F.scaled_dot_product_attention(q, k, v, **options))
    values = v.repeat_interleave(2, 1) if "enable_gqa" in options else v
    assert torch.allclose(seen[0] @ values, y, atol=1e-6)


def test_every_softmax_over_the_last_axis_is_seen():
    seen, x = [], images(1, 2, 3, 4)
    with SeeWeights(seen.append):
        results = [x.softmax(-1), torch.softmax(x, 3), F.softmax(x, dim=-1), nn.Softmax(-1)(x), x.softmax(dim=3)]
        x.softmax(1), x.sigmoid(), x.double().softmax(2)
    assert len(seen) == 5 and all(torch.equal(a, b) for a, b in zip(seen, results, strict=True))
