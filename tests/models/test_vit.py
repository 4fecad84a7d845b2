"""The vision transformer: its parts against the formulas, its sizes against the paper's, its class token, its maps."""

import math

import pytest
import timm
import torch
import torch.nn.functional as F

import dynavit
from dynavit.models.layers import resize_positions
from dynavit.norms import DynamicTokenNorm, LayerNorm


def tiny(norm=None, **options):
    torch.manual_seed(0)
    return dynavit.create_model("test_vit", norm, **options)


def images(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def randomise(model):
    """Every parameter away from its init, so that a part that is left out shows."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


# What it computes


def plain_vit(model, image, heads):
    """A LayerNorm model with a late class token, written out."""
    state = dict(model.state_dict())
    patch = state["patch_embed.proj.weight"].shape[-1]
    x = F.conv2d(image, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], stride=patch)
    x = x.flatten(2).mT + state["pos_embed"]
    c = x.shape[-1]

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
        return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]

    def linear(x, name):
        return x @ state[f"{name}.weight"].mT + state.get(f"{name}.bias", 0)

    for i in range(len(model.blocks)):
        if i == 2:
            x = torch.cat([state["cls_token"].expand(len(x), 1, c), x], 1)
        q, k, v = linear(norm(x, f"blocks.{i}.norm1"), f"blocks.{i}.attn.qkv").split(c, -1)
        attended = []
        for h in range(heads):
            at = slice(h * c // heads, (h + 1) * c // heads)
            weights = (q[..., at] @ k[..., at].mT / math.sqrt(c // heads)).softmax(-1)
            attended.append(weights @ v[..., at])
        x = x + linear(torch.cat(attended, -1), f"blocks.{i}.attn.proj")
        x = x + linear(F.gelu(linear(norm(x, f"blocks.{i}.norm2"), f"blocks.{i}.mlp.fc1")), f"blocks.{i}.mlp.fc2")
    return linear(norm(x, "norm")[:, 0], "head")


def test_it_computes_a_transformer():
    model = randomise(tiny().double())
    image = images(2, 3, 32, 32).double()
    torch.testing.assert_close(model(image), plain_vit(model, image, heads=4), rtol=1e-12, atol=1e-12)


STEMS = {  # convolutions, and the tokens of 32 x 48 pixels
    "one": (((5, 3, 1),), (10, 16)),
    "compact": (((3, 1, 1), (3, 2, 1), (3, 2, 1)), (8, 12)),
    "without padding": (((4, 2, 0), (3, 3, 1)), (5, 8)),
}


@pytest.mark.parametrize("class_token", ["late", "start", None])
@pytest.mark.parametrize("stem", STEMS)
def test_a_stem_of_convolutions_makes_the_tokens(stem, class_token):
    """Written out: every output pixel is a sum over its window of the zero-padded image."""
    splits, grid = STEMS[stem]
    options = {"img_size": (32, 48), "stem": [list(split) for split in splits], "stem_width": 6, "class_token": class_token}
    model = randomise(tiny("dtn", **options).double())
    state, image = model.state_dict(), images(2, 3, 32, 48).double()
    x = image
    for at, (kernel, stride, padding) in enumerate(splits):
        name = "proj" if at == len(splits) - 1 else f"stem.{at}"
        weight, bias = state[f"patch_embed.{name}.weight"], state[f"patch_embed.{name}.bias"]
        padded = x.new_zeros(*x.shape[:2], *(side + 2 * padding for side in x.shape[2:]))
        padded[:, :, padding : padding + x.shape[2], padding : padding + x.shape[3]] = x
        rows, cols = ((side - kernel) // stride + 1 for side in padded.shape[2:])
        x = bias[:, None, None].expand(2, -1, rows, cols)
        for i in range(kernel):
            for j in range(kernel):
                window = padded[:, :, i : i + stride * rows : stride, j : j + stride * cols : stride][:, :, :rows, :cols]
                x = x + torch.einsum("oc,bcij->boij", weight[:, :, i, j], window)
        if name != "proj":
            x = x * (1 + torch.erf(x / math.sqrt(2))) / 2
    tokens, found = model.patch_embed(image)
    assert found == model.grid_size == grid
    torch.testing.assert_close(tokens, x.flatten(2).mT, rtol=1e-12, atol=1e-12)

    # From there on it is the transformer with patches.
    patches = tiny("dtn", img_size=grid, patch_size=1, class_token=class_token).double()
    patches.patch_embed = model.patch_embed
    patches.load_state_dict(state)
    torch.testing.assert_close(model(image), patches(image), rtol=0, atol=0)


def test_a_norm_between_the_convolutions_of_a_stem():
    """BatchNorm in training, written out: pixels of all samples, channel by channel, before the GELU and not after the last."""
    model = randomise(tiny(stem=STEMS["compact"][0], stem_width=6, stem_norm="bn").double()).train()
    embed, x = model.patch_embed, images(2, 3, 32, 32).double()
    tokens, _ = embed(x)
    for conv, norm in zip(embed.stem, embed.norms, strict=True):
        x = conv(x)
        mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), correction=0, keepdim=True)
        x = (x - mean) / (variance + norm.eps).sqrt() * norm.weight[:, None, None] + norm.bias[:, None, None]
        x = x * (1 + torch.erf(x / math.sqrt(2))) / 2
    torch.testing.assert_close(tokens, embed.proj(x).flatten(2).mT, rtol=1e-12, atol=1e-12)


def test_a_stem_is_known_to_timm_and_takes_any_size():
    model = tiny(stem=STEMS["compact"][0])
    assert model.default_cfg["first_conv"] == "patch_embed.stem.0" and model.grid_size == (8, 8)
    assert model.feature_info[0]["reduction"] == 4
    assert model(images(2, 3, 20, 52)).shape == (2, 10)
    assert tiny(stem=[(4, 4, 0)]).default_cfg["first_conv"] == "patch_embed.proj"
    model(images(2, 3, 32, 32)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    names = [name for name in model.state_dict() if name.startswith("patch_embed")]
    assert names == [f"patch_embed.{at}.{kind}" for at in ("stem.0", "stem.1", "proj") for kind in ("weight", "bias")]


SIZES = {  # class token late, from the start: spec/dtn.md section 4, counted on the released models
    "vit_tiny": (5_710_312, 5_710_504),
    "vit_tiny_star": (5_710_312, 5_710_504),
    "vit_small": (22_036_456, 22_036_840),
    "vit_small_star": (27_776_872, 27_777_304),
    "vit_base": (86_539_240, 86_540_008),
    "vit_base_star": (86_539_240, 86_540_008),
}


@pytest.mark.parametrize("name", SIZES)
def test_parameter_counts_are_those_of_the_release(name):
    def count(**options):
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in dynavit.create_model(name, **options).parameters())

    late, start = SIZES[name]
    assert count() == late
    assert count(class_token="start") == start
    with torch.device("meta"):
        model = dynavit.create_model(name)
    heads, dim = model.blocks[0].attn.heads, model.embed_dim
    assert count(norm="dtn") == late + 20 * 5 * heads  # the release has an inert bias more: 6 heads
    assert count(norm="dtn", norm_sites="attn") == late + 10 * 5 * heads
    assert count(norm="rms") == late - 20 * dim


# Where the chosen norm stands


@pytest.mark.parametrize("norm_blocks", [0, 1, 2, 3, 10])
@pytest.mark.parametrize("norm_sites", ["both", "attn", "mlp"])
def test_the_first_blocks_carry_the_norm(norm_blocks, norm_sites):
    model = tiny("dtn", norm_blocks=norm_blocks, norm_sites=norm_sites)
    for i, block in enumerate(model.blocks):
        expected = dict.fromkeys(("attn", "mlp"), DynamicTokenNorm if i < norm_blocks else LayerNorm)
        if norm_sites != "both":
            expected["mlp" if norm_sites == "attn" else "attn"] = LayerNorm
        assert type(block.norm1) is expected["attn"]
        assert type(block.norm2) is expected["mlp"]
    assert type(model.norm) is LayerNorm


def tokens_seen(model, image):
    seen = []
    handles = [block.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1])) for block in model.blocks]
    model(image)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize(
    ("class_token", "norm_blocks", "seen"),
    [
        ("late", 0, [17, 17, 17]),
        ("late", 1, [16, 17, 17]),
        ("late", 2, [16, 16, 17]),
        ("late", 3, [16, 16, 17]),  # it has to see the image, so it enters before the last block
        ("late", 10, [16, 16, 17]),
        ("start", 2, [17, 17, 17]),
        (None, 2, [16, 16, 16]),
        ("none", 2, [16, 16, 16]),
    ],
)
def test_when_the_class_token_enters(class_token, norm_blocks, seen):
    model = tiny("dtn", class_token=class_token, norm_blocks=norm_blocks)
    assert tokens_seen(model, images(1, 3, 32, 32)) == seen
    assert model.pos_embed.shape[1] == 16 + (class_token == "start")
    for block, tokens in zip(model.blocks, seen, strict=True):
        for norm in (block.norm1, block.norm2):
            if isinstance(norm, DynamicTokenNorm):
                assert norm.num_prefix_tokens == tokens - 16


@pytest.mark.parametrize("norm", ["ln", "dtn", "dtn_released", "bn"])
def test_a_class_token_works_with_the_norm_in_every_block(norm):
    model = randomise(tiny(norm, norm_blocks=3)).eval()
    one, other = model(images(1, 3, 32, 32, seed=1)), model(images(1, 3, 32, 32, seed=2))
    assert not torch.allclose(one, other, atol=1e-3)  # the release classifies patch 0 there; a constant would be as bad
    one.sum().backward()
    assert model.cls_token.grad.abs().max() > 0


def test_without_a_class_token_patches_are_averaged():
    model = randomise(tiny(class_token=None)).eval()
    image = images(2, 3, 32, 32)
    features = model.forward_features(image)
    torch.testing.assert_close(model(image), model.head(features.mean(1)))


# Grids


@pytest.mark.parametrize("class_token", ["late", "start", None])
@pytest.mark.parametrize("norm", ["dtn", "dtn_released"])
@pytest.mark.parametrize("grid", [(4, 9), (8, 18), (7, 28), (1, 16), (4, 4)])
def test_the_grid_of_the_image_reaches_every_norm(norm, grid, class_token):
    """The same as blocks run by hand, whose norms are given the grid."""
    model = randomise(tiny(norm, class_token=class_token, norm_blocks=3).double())
    image = images(2, 3, 8 * grid[0], 8 * grid[1]).double()
    x = model.patch_embed.proj(image).flatten(2).mT
    positions = resize_positions(model.pos_embed, (4, 4), grid, prefix=int(class_token == "start"))
    if class_token == "start":
        x = torch.cat([model.cls_token.expand(2, -1, -1), x], 1)
    x = x + positions
    for i, block in enumerate(model.blocks):
        if class_token == "late" and i == 2:
            x = torch.cat([model.cls_token.expand(2, -1, -1), x], 1)
        x = x + block.attn(block.norm1(x, grid=grid))
        x = x + block.mlp(block.norm2(x, grid=grid))
    x = model.norm(x)
    pooled = x[:, 0] if class_token else x.mean(1)
    torch.testing.assert_close(model(image), model.head(pooled), rtol=1e-12, atol=1e-12)


def test_196_tokens_on_another_grid_are_another_image():
    model = randomise(tiny("dtn", img_size=(8 * 7, 8 * 28)).double())
    assert model.patch_embed.grid_size == (7, 28)
    seen = []
    model.blocks[0].norm1.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[1]))
    model(images(1, 3, 56, 224).double())
    model(images(1, 3, 112, 112).double())
    assert seen == [(7, 28), (14, 14)]


def test_positions_of_a_smooth_map_are_resized_smoothly():
    rows, cols = torch.meshgrid(torch.arange(8.0), torch.arange(12.0), indexing="ij")
    ramp = torch.stack([rows, cols], -1).reshape(1, 96, 2)
    prefix = torch.tensor([[[100.0, 200.0]]])
    resized = resize_positions(torch.cat([prefix, ramp], 1), (8, 12), (16, 18), prefix=1)
    torch.testing.assert_close(resized[:, :1], prefix)
    image = resized[0, 1:].unflatten(0, (16, 18))
    inner = image[4:-4, 3:-3]
    torch.testing.assert_close(inner[1:, :, 0] - inner[:-1, :, 0], torch.full((7, 12), 0.5))  # a slope of 8 / 16
    torch.testing.assert_close(inner[:, 1:, 1] - inner[:, :-1, 1], torch.full((8, 11), 12 / 18))
    assert resize_positions(ramp, (8, 12), (8, 12)) is ramp


# Initialisation


def test_what_the_model_initialises():
    model = tiny(embed_dim=192)
    for weight in (
        model.pos_embed,
        model.cls_token,
        model.blocks[1].attn.qkv.weight,
        model.blocks[2].mlp.fc2.weight,
        model.head.weight,
    ):
        assert 0.015 < weight.std() < 0.025
    assert model.head.bias.abs().max() == 0 and model.blocks[0].mlp.fc1.bias.abs().max() == 0


# timm's conventions


@pytest.mark.parametrize("class_token", ["late", "start"])
def test_layer_decay_follows_depth(class_token):
    from timm.optim import create_optimizer_v2
    from timm.optim._param_groups import param_groups_layer_decay

    model = tiny("dtn", class_token=class_token)
    groups = param_groups_layer_decay(model, weight_decay=0.05, layer_decay=0.5, no_weight_decay_list=model.no_weight_decay())
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    scale, decay = {}, {}
    for group in groups:
        for parameter in group["params"]:
            scale[names[id(parameter)]] = group["lr_scale"]
            decay[names[id(parameter)]] = group["weight_decay"]
    assert set(scale) == set(names.values())
    ordered = ["pos_embed", "blocks.0.attn.qkv.weight", "blocks.1.attn.qkv.weight", "blocks.2.attn.qkv.weight", "norm.weight"]
    depths = [scale[name] for name in ordered]
    assert depths == [0.0625, 0.125, 0.25, 0.5, 0.5]  # the last norm belongs to the last block, the head has 1
    assert scale["cls_token"] == scale["blocks.2.norm1.weight" if class_token == "late" else "pos_embed"]
    for name in ("pos_embed", "cls_token", "blocks.0.norm1.position", "blocks.1.norm2.mean_logit", "norm.weight", "head.bias"):
        assert decay[name] == 0, name
    assert decay["blocks.0.mlp.fc1.weight"] == 0.05
    optimizer = create_optimizer_v2(model, "adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.5)
    model(images(2, 3, 32, 32)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("class_token", ["late", "start", None])
def test_classifier(class_token):
    model = tiny(class_token=class_token).double()
    assert model.get_classifier() is model.head
    image = images(2, 3, 32, 32).double()
    features = model.forward_features(image)
    before = model.forward_head(features, pre_logits=True)
    assert before.shape == (2, model.num_features) == (2, model.head_hidden_size)
    model.reset_classifier(7)
    assert model(image).shape == (2, 7) and model.num_classes == 7
    model.reset_classifier(0)
    torch.testing.assert_close(model(image), before)
    model.reset_classifier(3, "avg")
    torch.testing.assert_close(model.forward_head(features, pre_logits=True), features[:, model.num_prefix_tokens :].mean(1))
    model.reset_classifier(0, "")
    torch.testing.assert_close(model(image), features)
    if class_token is None:
        with pytest.raises(ValueError, match="no class token to pool"):
            model.reset_classifier(3, "token")
    with pytest.raises(ValueError, match="Did you mean 'token'"):
        model.reset_classifier(3, "tokens")


class TestIntermediates:
    image = images(2, 3, 32, 48)

    def after_each_block(self, model):
        outputs = []
        handles = [block.register_forward_hook(lambda *call: outputs.append(call[2])) for block in model.blocks]
        features = model.forward_features(self.image)
        for handle in handles:
            handle.remove()
        return features, outputs

    @pytest.mark.parametrize("class_token", ["late", "start", None])
    def test_they_are_the_blocks_outputs(self, class_token):
        model = randomise(tiny("dtn", class_token=class_token)).eval()
        features, outputs = self.after_each_block(model)
        final, found = model.forward_intermediates(self.image, output_fmt="NLC")
        torch.testing.assert_close(final, features)
        for i, (got, full) in enumerate(zip(found, outputs, strict=True)):
            torch.testing.assert_close(got, full[:, model.prefix_tokens(i) :])
        maps = model.forward_intermediates(self.image, intermediates_only=True)
        assert [tuple(x.shape) for x in maps] == [(2, 48, 4, 6)] * 3
        torch.testing.assert_close(maps[1][:, :, 2, 5], found[1][:, 2 * 6 + 5])

    def test_prefix_tokens_norm_and_indices(self):
        model = randomise(tiny("dtn")).eval()
        _, outputs = self.after_each_block(model)
        pairs = model.forward_intermediates(self.image, return_prefix_tokens=True, norm=True, intermediates_only=True)
        assert [prefix.shape[1] for _, prefix in pairs] == [0, 0, 1]
        torch.testing.assert_close(pairs[2][1], model.norm(outputs[2])[:, :1])
        (last,) = model.forward_intermediates(self.image, 1, output_fmt="NLC", intermediates_only=True)
        torch.testing.assert_close(last, outputs[2][:, 1:])
        (first,) = model.forward_intermediates(self.image, [-3], output_fmt="NLC", intermediates_only=True)
        torch.testing.assert_close(first, outputs[0])

    def test_stopping_early_runs_no_further_block(self):
        model = tiny().eval()
        model.blocks[2].register_forward_hook(lambda *_: pytest.fail("the third block was not asked for"))
        model.forward_intermediates(self.image, [0, 1], stop_early=True, intermediates_only=True)

    def test_unknown_format(self):
        with pytest.raises(ValueError, match="output format 'NHWC'"):
            tiny().forward_intermediates(self.image, output_fmt="NHWC")

    def test_features_only_through_timm(self):
        options = {"img_size": 32, "patch_size": 8, "depth": 3, "norm_blocks": 2, "norm": "dtn"}
        features = timm.create_model("vit_tiny_star", features_only=True, **options)
        maps = features(self.image)
        assert [tuple(x.shape) for x in maps] == [(2, 192, 4, 6)] * 3
        assert features.feature_info.channels() == [192] * 3 and features.feature_info.reduction() == [8] * 3
        pruned = timm.create_model("vit_tiny_star", features_only=True, out_indices=[0, 1], **options)
        pruned.load_state_dict(features.state_dict(), strict=False)
        assert len(pruned.model.blocks) == 2
        for got, full in zip(pruned(self.image), maps[:2], strict=True):
            torch.testing.assert_close(got, full)
        sum(x.sum() for x in pruned(self.image)).backward()
        assert all(parameter.grad is not None for parameter in pruned.parameters())  # nothing unused is left, DDP needs that


# Compilation


@pytest.mark.slow
@pytest.mark.parametrize("class_token", ["late", "start"])
def test_it_compiles_in_one_graph(class_token):
    model = randomise(tiny("dtn", class_token=class_token))
    image = images(2, 3, 32, 72)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(image), model(image))
    compiled(image).sum().backward()
    by_compiler = model.blocks[0].norm1.position.grad.clone()
    model.zero_grad()
    model(image).sum().backward()
    torch.testing.assert_close(by_compiler, model.blocks[0].norm1.position.grad)


# Errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"img_size": 30}, "30x30 cannot be cut into patches of 8x8; the nearest size that can is 32x32"),
        ({"norm": "dtm"}, "unknown norm 'dtm'. Did you mean 'dyt' or 'dtn'"),
        ({"norm": "dtm", "norm_blocks": 0}, "unknown norm 'dtm'"),
        ({"norm_sites": "atn"}, "unknown norm site 'atn'. Did you mean 'attn'"),
        ({"class_token": "last"}, "unknown class token 'last'"),
        ({"stem": []}, "one (kernel, stride, padding) for each step"),
        ({"stem": [(3, 2)]}, "one (kernel, stride, padding) for each step, such as (3, 2, 1); got [(3, 2)]"),
        ({"stem": [(3, 0, 1)]}, "one (kernel, stride, padding) for each step"),
        ({"stem": [(7, 1, 0)], "img_size": 6}, "an image of 6x6 is too small for the convolutions ((7, 1, 0),)"),
        ({"heads": 5}, "48 channels cannot be split into 5 heads"),
        ({"norm_blocks": -1}, "norm_blocks=-1"),
        ({"norm": "dtn", "norm_options": {"raduis": 3}}, "Did you mean 'radius'"),
        ({"norm_block": 3}, "unknown option of model 'test_vit' 'norm_block'. Did you mean 'norm_blocks'"),
    ],
)
def test_what_cannot_be_built_says_why(options, message):
    with pytest.raises(ValueError) as error:
        dynavit.create_model("test_vit", **options)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 1, 32, 32), r"\(2, 1, 32, 32\); it takes \(batch, 3, height, width\)"),
        ((3, 32, 32), r"\(3, 32, 32\); it takes \(batch, 3, height, width\)"),
        ((2, 3, 32, 37), "32x37 cannot be cut into patches of 8x8; the nearest size that can is 32x40"),
        ((2, 3, 3, 32), "3x32 cannot be cut into patches of 8x8; the nearest size that can is 8x32"),
    ],
)
def test_what_cannot_be_classified_says_why(shape, message):
    with pytest.raises(ValueError, match=message):
        tiny()(torch.zeros(shape))


def test_what_a_stem_cannot_take_says_why():
    model = tiny(stem=[(7, 2, 0)])
    with pytest.raises(ValueError, match=r"\(2, 1, 32, 32\); it takes \(batch, 3, height, width\)"):
        model(torch.zeros(2, 1, 32, 32))
    with pytest.raises(ValueError, match="an image of 6x32 is too small"):
        model(torch.zeros(2, 3, 6, 32))


def test_linears_start_with_the_deviation_that_is_asked_for():
    wide, usual = (tiny(init_std=std).blocks[0].mlp.fc1.weight.std().item() for std in (0.08, 0.02))
    assert wide / usual == pytest.approx(4, rel=1e-4) and usual == pytest.approx(0.02, rel=0.2)
    with pytest.raises(ValueError, match="init_std is a deviation of weights, above 0, such as 0.02; got 0"):
        tiny(init_std=0)
