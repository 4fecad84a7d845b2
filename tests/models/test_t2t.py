"""T2T-ViT: soft splits and attention against the formulas, a performer without overflow, sizes, grids."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import dynavit
from dynavit.models import t2t
from dynavit.models.t2t import T2T_SIZES, TokenPerformer, TokensToToken, TokenTransformer, linear_attention, sinusoid
from dynavit.norms import DynamicTokenNorm, LayerNorm


def tiny(norm=None, **options):
    torch.manual_seed(0)
    model = dynavit.create_model("test_t2t", norm, **options).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def images(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- the performer


def original(q, k, v, features):
    """As released, and as in the paper: exponentials first."""
    m = features.shape[0]
    phi_q, phi_k = (torch.exp(z @ features.T - z.square().sum(-1, keepdim=True) / 2) / math.sqrt(m) for z in (q, k))
    weights = phi_q @ phi_k.transpose(1, 2)  # (b, t, s)
    return weights @ v / (weights.sum(-1, keepdim=True) + 1e-8)


def random_qkv(scale, dtype=torch.float64, tokens=20, width=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, tokens, width, generator=generator, dtype=torch.float64) for _ in range(3))
    features = torch.randn(width // 2, width, generator=generator, dtype=torch.float64)
    return [(scale * q).to(dtype), (scale * k).to(dtype), v.to(dtype), features.to(dtype)]


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 2.0, 3.0, 5.0])
def test_linear_attention_is_the_original_where_that_is_finite(scale):
    """Scale 2: the denominators are about eps; from 3 on they drown in it and y goes to 0, in both."""
    parts = [part.requires_grad_() for part in random_qkv(scale)]
    want = original(*parts)
    got = linear_attention(*parts)
    assert want.isfinite().all()
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-14)
    cotangent = torch.randn_like(want)
    for one, other in zip(torch.autograd.grad(got, parts, cotangent), torch.autograd.grad(want, parts, cotangent), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_does_not_overflow(dtype):
    q, k, v, features = random_qkv(1.0, width=64)
    q = k = 1.2 * features.mean(0).expand_as(q) + 0.01 * q  # in the direction of the features: large exponents
    features, q, k = 4 * features, 2 * q, 2 * k
    parts = [part.to(dtype) for part in (q, k, v, features)]
    if dtype == torch.float16:  # bfloat16 has the range of float32, only few digits
        assert not original(*parts).isfinite().all()
    parts = [part.requires_grad_() for part in parts]
    got = linear_attention(*parts)
    want = original(*(part.detach().double() for part in parts))
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, rtol=2e-4, atol=2e-4)
    for grad in torch.autograd.grad(got.square().sum(), parts):
        assert grad.isfinite().all()


@pytest.mark.parametrize("scale", [10.0, 1e3, 1e12, 1e25])
def test_extreme_activations_give_finite_numbers_and_gradients(scale):
    parts = [part.requires_grad_() for part in random_qkv(scale, torch.float32)]
    got = linear_attention(*parts)
    assert got.isfinite().all()
    assert got.abs().max() < 1e-6  # nothing is above eps, as in the original
    for grad in torch.autograd.grad(got.sum(), parts):
        assert grad.isfinite().all()


def test_exponents_beyond_the_range_of_float32():
    """Large and well aligned: the original overflows, the answer is an average of v."""
    q, k, v, features = random_qkv(0.01, torch.float32)
    features = 300 * F.normalize(features, dim=1)
    q = k = 0.5 * F.normalize(features[:1], dim=1)[None].expand_as(q)
    assert not original(q, k, v, features).isfinite().all()
    torch.testing.assert_close(linear_attention(q, k, v, features), v.mean(1, keepdim=True).expand_as(v), rtol=1e-4, atol=1e-5)


def test_autocast_stays_out_of_the_performer():
    torch.manual_seed(0)
    layer = TokenPerformer(12, 16, drop=0.0)
    x = torch.randn(2, 9, 12)
    seen = []
    with torch.autocast("cpu", torch.bfloat16):
        k, q, v = layer.kqv(layer.norm1(x)).chunk(3, -1)
        seen.append(linear_attention(q, k, v, layer.w))
    assert v.dtype == torch.bfloat16
    assert seen[0].dtype == torch.float32
    want = original(*(part.double() for part in (q, k, v, layer.w)))
    torch.testing.assert_close(seen[0].double(), want, rtol=1e-5, atol=1e-5)


def test_random_features_are_orthogonal_and_fixed():
    layer = TokenPerformer(12, 64)
    torch.testing.assert_close(layer.w @ layer.w.T, 32 * torch.eye(32), rtol=1e-4, atol=1e-3)
    assert "w" in layer.state_dict() and "w" not in dict(layer.named_parameters())


def test_performer_layer_is_its_formulas():
    torch.manual_seed(0)
    layer = TokenPerformer(12, 16).double().eval()
    x = images(2, 9, 12)
    z = F.layer_norm(x, (12,), eps=1e-5)
    k, q, v = (z @ layer.kqv.weight.T + layer.kqv.bias).split(16, -1)
    o = v + original(q, k, v, layer.w) @ layer.proj.weight.T + layer.proj.bias
    first, _, second, _ = layer.mlp
    hidden = F.gelu(F.layer_norm(o, (16,), eps=1e-5) @ first.weight.T + first.bias)
    torch.testing.assert_close(layer(x), o + hidden @ second.weight.T + second.bias)


def test_token_transformer_is_its_formulas():
    torch.manual_seed(0)
    layer = TokenTransformer(12, 16).double().eval()
    x = images(2, 9, 12)
    q, k, v = (F.layer_norm(x, (12,), eps=1e-5) @ layer.attn.qkv.weight.T).split(16, -1)
    o = v + (q @ k.transpose(1, 2) / 12**0.5).softmax(-1) @ v @ layer.attn.proj.weight.T + layer.attn.proj.bias
    hidden = F.gelu(F.layer_norm(o, (16,), eps=1e-5) @ layer.mlp.fc1.weight.T + layer.mlp.fc1.bias)
    torch.testing.assert_close(layer(x), o + hidden @ layer.mlp.fc2.weight.T + layer.mlp.fc2.bias)


# --- the tokenizer


@pytest.mark.parametrize(
    ("first", "grids"),
    [
        ((14, 8, 3), [(28, 28), (14, 14), (7, 7)]),
        ((11, 6, 5), [(38, 38), (19, 19), (10, 10)]),
        ((7, 4, 2), [(56, 56), (28, 28), (14, 14)]),
    ],
)
def test_grids_of_the_three_tokenizers_of_dvt(first, grids):
    tokenizer = TokensToToken(24, splits=(first, (3, 2, 1), (3, 2, 1)))
    assert tokenizer.grids((224, 224)) == grids
    assert tokenizer.attention1.kqv.in_features == 3 * first[0] ** 2
    with torch.device("meta"):
        tokens, grid = TokensToToken(24, splits=tokenizer.splits)(torch.empty(2, 3, 224, 224))
    assert (tuple(tokens.shape), grid) == ((2, math.prod(grids[-1]), 24), grids[-1])


@pytest.mark.parametrize("kind", ["performer", "transformer"])
def test_a_soft_split_reads_patches_channel_first_and_rows_first(kind):
    torch.manual_seed(0)
    tokenizer = TokensToToken(8, kind=kind, splits=((5, 2, 1), (3, 2, 1)), in_chans=2, width=4).double().eval()
    image = images(1, 2, 9, 13)
    padded = np.pad(image[0].numpy(), ((0, 0), (1, 1), (1, 1)))
    tokens = [padded[:, y : y + 5, x : x + 5].reshape(-1) for y in range(0, 7, 2) for x in range(0, 11, 2)]
    middle = tokenizer.attention1(torch.from_numpy(np.stack(tokens))[None])  # on a 4x6 grid
    plane = np.pad(middle[0].detach().numpy().reshape(4, 6, 4), ((1, 1), (1, 1), (0, 0)))
    tokens = [plane[y : y + 3, x : x + 3].transpose(2, 0, 1).reshape(-1) for y in range(0, 4, 2) for x in range(0, 6, 2)]
    want = tokenizer.project(torch.from_numpy(np.stack(tokens))[None])
    got, grid = tokenizer(image)
    assert grid == (2, 3)
    torch.testing.assert_close(got, want)


def test_the_tokenizer_refuses_what_it_cannot_do():
    tokenizer = TokensToToken(8, splits=((7, 4, 0), (3, 2, 1)))
    with pytest.raises(ValueError, match="an image of 6x40 is too small"):
        tokenizer(torch.zeros(1, 3, 6, 40))
    with pytest.raises(ValueError, match="it takes"):
        tokenizer(torch.zeros(1, 1, 32, 32))
    with pytest.raises(ValueError, match="kind is 'performer' or 'transformer'"):
        TokensToToken(8, kind="conv")


def test_positions_are_sinusoids_along_the_sequence():
    positions = sinusoid(50, 6)[0]
    for p in (0, 1, 49):
        for j in range(6):
            angle = p / 10000 ** (2 * (j // 2) / 6)
            assert positions[p, j].item() == pytest.approx(math.cos(angle) if j % 2 else math.sin(angle), abs=1e-6)
    model = tiny()
    assert "pos_embed" in model.state_dict() and "pos_embed" not in dict(model.named_parameters())
    assert torch.equal(model.pos_embed[0].float(), sinusoid(17, 32)[0])


# --- the model


@pytest.mark.parametrize("name", T2T_SIZES)
def test_sizes(name):
    with torch.device("meta"):
        model = dynavit.create_model(name)
    tokens, number = ("transformer", name[10:]) if "_t_" in name else ("performer", name[8:])
    width, heads, ratio = {"14": (384, 6, 3), "19": (448, 7, 3), "24": (512, 8, 3)}.get(number, (256, 4, 2))
    assert (len(model.blocks), model.embed_dim, model.blocks[0].attn.heads) == (int(number), width, heads)
    assert model.blocks[0].mlp.fc1.out_features == ratio * width
    assert model.blocks[0].attn.qkv.bias is None
    kind = TokenTransformer if tokens == "transformer" else TokenPerformer
    assert isinstance(model.tokens_to_token.attention1, kind)


def test_norms_know_the_class_token_and_the_grid():
    model = tiny("dtn").eval()
    kinds = {name: module for name, module in model.named_modules() if isinstance(module, DynamicTokenNorm)}
    assert set(kinds) == {f"blocks.{i}.norm{n}" for i in (0, 1) for n in (1, 2)}
    assert all(module.num_prefix_tokens == 1 and module.heads == 4 for module in kinds.values())
    seen = []
    for module in kinds.values():
        module.register_forward_pre_hook(lambda _, args: seen.append((args[0].shape[1], args[1])))
    model(images(1, 3, 32, 56))
    assert seen == [(1 + 4 * 7, (4, 7))] * 4


@pytest.mark.parametrize(("sites", "blocks"), [("attn", 1), ("mlp", 2), ("both", 0), ("both", None)])
def test_norm_sites_and_blocks(sites, blocks):
    model = tiny("dtn", norm_sites=sites, norm_blocks=blocks)
    for i, block in enumerate(model.blocks):
        for site, norm in (("attn", block.norm1), ("mlp", block.norm2)):
            replaced = i < (2 if blocks is None else blocks) and sites in ("both", site)
            assert isinstance(norm, DynamicTokenNorm if replaced else LayerNorm)
    with pytest.raises(ValueError, match="norm_blocks counts blocks from the first, 0 to 2; got 3"):
        tiny("dtn", norm_blocks=3)
    with pytest.raises(ValueError, match="norm site"):
        tiny("dtn", norm_sites="all")
    with pytest.raises(ValueError, match="unknown norm 'dnt'"):
        tiny("dnt", norm_blocks=0)


def by_hand(model, x, scale):
    tokens, grid = model.tokens_to_token(x)
    x = torch.cat([model.cls_token.expand(len(x), -1, -1), tokens], 1) + model.pos_embed
    for block in model.blocks:
        c, heads = x.shape[-1], block.attn.heads
        d = c // heads
        q, k, v = (block.norm1(x, grid=grid) @ block.attn.qkv.weight.T).split(c, -1)
        parts = []
        for h in range(heads):
            own = slice(h * d, (h + 1) * d)
            parts.append((scale * q[..., own] @ k[..., own].transpose(1, 2)).softmax(-1) @ v[..., own])
        x = x + torch.cat(parts, -1) @ block.attn.proj.weight.T + block.attn.proj.bias
        y = F.gelu(block.norm2(x, grid=grid) @ block.mlp.fc1.weight.T + block.mlp.fc1.bias)
        x = x + y @ block.mlp.fc2.weight.T + block.mlp.fc2.bias
    x = F.layer_norm(x, (c,), model.norm.weight, model.norm.bias, 1e-5)
    return x[:, 0] @ model.head.weight.T + model.head.bias


@pytest.mark.parametrize("norm", ["ln", "dtn", "dtn_released", "in"])
@pytest.mark.parametrize(("qk_scale", "scale"), [(None, 8**-0.5), (32**-0.5, 32**-0.5)])
def test_the_model_is_its_formulas(norm, qk_scale, scale):
    model = tiny(norm, qk_scale=qk_scale).eval()
    x = images(2, 3, 32, 32)
    torch.testing.assert_close(model(x), by_hand(model, x, scale), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("size", [(32, 32), (24, 40), (33, 47), (64, 16)])
def test_other_image_sizes(size):
    assert tiny("dtn").eval()(images(2, 3, *size)).shape == (2, 10)
    built = dynavit.create_model("test_t2t", "dtn", img_size=size)
    assert built.pos_embed.shape[1] == 1 + math.prod(built.grid_size)
    assert built(torch.randn(1, 3, *size)).shape == (1, 10)


def test_half_precision_models_stay_finite():
    model = dynavit.create_model("test_t2t").to(torch.bfloat16).eval()
    with torch.no_grad():
        model.tokens_to_token.attention1.kqv.weight.mul_(50)
        assert model(torch.randn(2, 3, 32, 32, dtype=torch.bfloat16)).isfinite().all()


@pytest.mark.parametrize("channels", [3, t2t.RUN])
def test_soft_splits_are_unfolded_patches_whatever_the_way(channels):
    x = torch.randn(2, 9, 7, channels, dtype=torch.float64).permute(0, 3, 1, 2).requires_grad_()  # channels last in memory
    ours, theirs = t2t.soft_split(x, 3, 2, 1), F.unfold(x, 3, stride=2, padding=1).transpose(1, 2)
    assert torch.equal(ours, theirs)
    weights = torch.randn_like(ours)
    for one, other in zip(*(torch.autograd.grad(y, x, weights) for y in (ours, theirs)), strict=True):
        torch.testing.assert_close(one, other)
