"""PVT: its parts against the formulas, its sizes against the paper's, its grids. Promises of all models: test_contract.py."""

import pytest
import torch
import torch.nn.functional as F

import dynavit
from dynavit.models.pvt import ReducedAttention, released_pool
from dynavit.norms import DynamicTokenNorm, LayerNorm

RELEASED = {  # released parameters with LN, with DTN
    "pvt_tiny": (13_229_288, 13_229_600),
    "pvt_small": (24_485_864, 24_486_560),
    "pvt_medium": (44_208_104, 44_209_520),
    "pvt_large": (61_369_320, 61_371_468),
}
DEPTHS = {"pvt_tiny": (2, 2, 2), "pvt_small": (3, 4, 6), "pvt_medium": (3, 4, 18), "pvt_large": (3, 8, 27)}


def tiny(norm=None, **options):
    torch.manual_seed(0)
    model = dynavit.create_model("test_pvt", norm, **options).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def images(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("pvt_tiny", "pvt_small") else [pytest.mark.slow]) for name in RELEASED]
)
def test_parameters_are_those_of_the_release(name):
    with torch.device("meta"):
        plain, dtn = dynavit.create_model(name), dynavit.create_model(name, "dtn")
    inert = 2 * sum(depth * heads for depth, heads in zip(DEPTHS[name], (4, 4, 5), strict=True))  # biases that cancel in P
    counts = tuple(sum(p.numel() for p in model.parameters()) for model in (plain, dtn))
    assert counts == (RELEASED[name][0], RELEASED[name][1] - inert)


def test_norms_are_replaced_in_stages_1_to_3_only():
    with torch.device("meta"):
        model = dynavit.create_model("pvt_tiny", "dtn")
    dtn = {name: module for name, module in model.named_modules() if isinstance(module, DynamicTokenNorm)}
    assert set(dtn) == {f"block{s}.{i}.norm{n}" for s in (1, 2, 3) for i in (0, 1) for n in (1, 2)}
    assert {(module.heads, module.dim) for module in dtn.values()} == {(4, 64), (4, 128), (5, 320)}
    assert all(module.eps == 1e-5 for module in dtn.values())
    for name, module in model.named_modules():
        if isinstance(module, LayerNorm):
            assert module.eps == (1e-5 if name.startswith("patch_embed") or name.endswith("attn.norm") else 1e-6), name


@pytest.mark.parametrize(("sites", "left"), [("attn", "norm2"), ("mlp", "norm1"), ("both", "")])
def test_norm_sites(sites, left):
    model = tiny("dtn", norm_sites=sites)
    for stage in (1, 2, 3):
        block = model.get_submodule(f"block{stage}.0")
        for site in ("norm1", "norm2"):
            assert isinstance(getattr(block, site), LayerNorm if site == left else DynamicTokenNorm)
    with pytest.raises(ValueError, match="unknown norm site 'all'"):
        tiny("dtn", norm_sites="all")


def test_pooling_is_the_released_norms_own():
    with torch.device("meta"):
        pooled, plain = (dynavit.create_model("pvt_tiny", name) for name in ("dtn_released", "dtn"))
        told = dynavit.create_model("pvt_tiny", "dtn_released", norm_options={"pool": 1})
    assert [pooled.get_submodule(f"block{s}.0.norm1").pool for s in (1, 2, 3)] == [4, 2, 1]
    assert [told.get_submodule(f"block{s}.0.norm1").pool for s in (1, 2, 3)] == [1, 1, 1]
    assert all(plain.get_submodule(f"block{s}.0.norm1").layout(14 * 14, (14, 14)).pool == 1 for s in (1, 2, 3))
    pools = {(56, 56): 4, (28, 28): 2, (14, 14): 1, (27, 27): 1, (48, 48): 3, (50, 50): 2, (56, 28): 2, (47, 47): 1}
    assert {grid: released_pool(grid) for grid in pools} == pools


def by_hand(model, x):
    """The whole forward pass in plain operations, with the norm modules as given."""
    for stage in (1, 2, 3, 4):
        embed = model.get_submodule(f"patch_embed{stage}")
        x = F.conv2d(x, embed.proj.weight, embed.proj.bias, stride=embed.proj.kernel_size)
        b, c, rows, cols = x.shape
        x = F.layer_norm(x.reshape(b, c, rows * cols).transpose(1, 2), (c,), embed.norm.weight, embed.norm.bias, 1e-5)
        if stage == 4:
            x = torch.cat([model.cls_token.expand(b, 1, c), x], 1)
        x = x + model.get_parameter(f"pos_embed{stage}")
        for block in model.get_submodule(f"block{stage}").children():
            attn = block.attn
            y = block.norm1(x, grid=(rows, cols))
            q = y @ attn.q.weight.T + attn.q.bias
            source = y
            if stage < 4:
                r = attn.reduction
                cells = y.reshape(b, rows // r, r, cols // r, r, c)
                source = torch.einsum("byuxvi,oiuv->byxo", cells, attn.sr.weight).reshape(b, -1, c) + attn.sr.bias
                source = F.layer_norm(source, (c,), attn.norm.weight, attn.norm.bias, 1e-5)
            k, v = (source @ attn.kv.weight.T + attn.kv.bias).split(c, -1)
            d = c // attn.heads
            heads = []
            for h in range(attn.heads):
                own = slice(h * d, (h + 1) * d)
                weights = (q[..., own] @ k[..., own].transpose(1, 2) / d**0.5).softmax(-1)
                heads.append(weights @ v[..., own])
            x = x + torch.cat(heads, -1) @ attn.proj.weight.T + attn.proj.bias
            y = block.norm2(x, grid=(rows, cols))
            y = F.gelu(y @ block.mlp.fc1.weight.T + block.mlp.fc1.bias) @ block.mlp.fc2.weight.T + block.mlp.fc2.bias
            x = x + y
        if stage < 4:
            x = x.transpose(1, 2).reshape(b, c, rows, cols)
    x = F.layer_norm(x, (c,), model.norm.weight, model.norm.bias, 1e-6)
    return x[:, 0] @ model.head.weight.T + model.head.bias


@pytest.mark.parametrize("norm", ["ln", "dtn", "dtn_released", "in"])
@pytest.mark.parametrize("size", [(32, 32), (32, 64)])
def test_the_model_is_its_formulas(norm, size):
    model = tiny(norm, img_size=size).eval()
    x = images(2, 3, *size)
    torch.testing.assert_close(model(x), by_hand(model, x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("size", [(16, 16), (32, 48), (48, 16), (34, 50), (64, 64)])
def test_other_image_sizes(size):
    model = tiny("dtn").eval()
    seen = {}
    for name, module in model.named_modules():
        if isinstance(module, DynamicTokenNorm):
            module.register_forward_pre_hook(lambda _, args, name=name: seen.update({name: args[1]}))
    assert model(images(2, 3, *size)).shape == (2, 10)
    rows, cols = (side // 2 for side in size)
    assert {name[:6]: grid for name, grid in seen.items()} == {
        f"block{stage}": (rows // 2 ** (stage - 1), cols // 2 ** (stage - 1)) for stage in (1, 2, 3)
    }


def test_sizes_that_cannot_work_are_refused():
    model = tiny()
    with pytest.raises(ValueError, match="16x16 .*8x8 patches.*at least|15x16 cannot be cut"):
        model(images(1, 3, 15, 16))
    with pytest.raises(ValueError, match="an image of 8x32 has 4x16 patches; four stages need at least 8x8"):
        model(images(1, 3, 8, 32))
    with pytest.raises(ValueError, match="it takes"):
        model(images(1, 1, 32, 32))
    with pytest.raises(ValueError, match="depths has one number for each of four stages"):
        tiny(depths=(1, 1))


def test_intermediates():
    model = tiny("dtn").eval()
    x = images(2, 3, 32, 32)
    final, maps = model.forward_intermediates(x)
    assert torch.equal(final, model.forward_features(x))
    assert [m.shape[1] for m in maps] == [8, 16, 20, 32]
    _, normed = model.forward_intermediates(x, indices=1, norm=True)
    assert torch.equal(normed[0].flatten(2).transpose(1, 2), final[:, 1:])
    only = model.forward_intermediates(x, indices=[1], intermediates_only=True)
    assert torch.equal(only[0], maps[1])
    early, _ = model.forward_intermediates(x, indices=[1], stop_early=True)
    assert torch.equal(early, maps[1])
    with pytest.raises(ValueError, match="maps are 'NCHW'"):
        model.forward_intermediates(x, output_fmt="NLC")


def test_reduction_asks_everyone_and_answers_in_cells():
    attention = ReducedAttention(8, 2, 4).double()
    x = images(1, 8 * 12, 8)
    y = attention(x, (8, 12))
    assert y.shape == x.shape
    moved = x.clone()
    moved[:, 0] += 1  # one token changes one key, hence every output
    assert ((attention(moved, (8, 12)) - y).abs().amax(-1) > 0).all()


def test_cells_of_statistics_are_chosen_for_each_stage():
    model = dynavit.create_model("pvt_nano", "dtn_released", norm_pool=[2, 2, 1])
    assert [getattr(model, f"block{stage}")[0].norm1.pool for stage in (1, 2, 3)] == [2, 2, 1]
    assert type(model.block4[0].norm1) is LayerNorm
    assert dynavit.create_model("pvt_nano", "ln", norm_pool=[2, 2, 1])  # nothing to pool
    with pytest.raises(ValueError, match="one number for each of stages 1-3"):
        dynavit.create_model("pvt_nano", "dtn_released", norm_pool=[2, 2])


def test_masked_attention_leaves_padded_cells_out():
    """Tokens of a padded grid get what those of the grid alone get."""
    torch.manual_seed(0)
    attention = ReducedAttention(16, 4, 2).double()
    x = torch.randn(1, 6 * 8, 16, dtype=torch.float64).unflatten(1, (6, 8))
    mask = torch.zeros(1, 6, 8, dtype=torch.bool)
    mask[:, :4, :5] = True
    x = torch.where(mask[..., None], x, 0.0)
    found = attention(x.flatten(1, 2), (6, 8), mask.flatten(1)).unflatten(1, (6, 8))
    alone = attention(x[:, :4, :6].flatten(1, 2), (4, 6)).unflatten(1, (4, 6))  # whole cells: the sixth column is padding
    torch.testing.assert_close(found[:, :4, :5], alone[:, :, :5], rtol=1e-12, atol=1e-12)
    attention.hides_padding = False
    seen = attention(x.flatten(1, 2), (6, 8), mask.flatten(1)).unflatten(1, (6, 8))
    assert (seen[:, :4, :5] - alone[:, :, :5]).abs().max() > 1e-3
