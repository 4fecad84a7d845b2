"""The cascade against its equations; what can be chosen; what is refused."""

import dataclasses

import pytest
import torch

import dynavit
from dynavit.models.cascade import Blocks, Cascade, Reuse, Tokens
from dynavit.models.cascade.options import FLAT, cascade_options
from models.cascade import oracle as cascade_oracle

THEN = ((3, 2, 1), (3, 2, 1))
# Image, and for each exit the splits of its tokenizer.
SHAPES = {
    "two square grids": ((12, 12), (((4, 4, 0),), ((2, 2, 0),))),  # 3x3 -> 6x6
    "wide images, odd grids": ((10, 21), (((5, 5, 0),), ((3, 3, 0),), ((2, 2, 0),))),  # 2x4 -> 3x7 -> 5x10
    "four exits": ((12, 12), (((12, 12, 0),), ((6, 6, 0),), ((4, 4, 1),), ((3, 3, 0),))),  # 1, 2x2, 3x3, 4x4
    "overlapping soft splits": ((24, 16), (((7, 4, 2), *THEN), ((3, 2, 1), *THEN))),  # 2x1 -> 3x2
    "stems of convolutions": ((16, 12), (((3, 2, 1), (4, 3, 1)), ((3, 2, 1), (3, 1, 1), (3, 2, 1)))),  # 3x2 -> 4x3
    "one exit": ((8, 8), (((4, 4, 0),),)),
}
BY_HALVES = [("dtn", "wide images, odd grids")]
REUSE = {"both": (True, True), "features": (True, False), "relations": (False, True), "none": (False, False)}


def build(shape, *, norm="ln", seed=0, **options):
    """A small cascade in float64, every parameter random and of a size that matters."""
    img_size, splits = SHAPES[shape]
    small = {"img_size": img_size, "splits": splits, "num_classes": 5, "embed_dim": 16, "depth": 2, "heads": 4}
    reuse = {"feature_hidden": 6, "feature_width": 8, "token_width": 6, "in_chans": 2}
    reuse["tokens"] = "conv" if "stem" in shape else "soft"
    given = {**small, **reuse, "norm": norm, **options}
    cascade = Cascade(**cascade_options(given, tokens=Tokens(splits), blocks=Blocks(), reuse=Reuse())).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in cascade.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            scale = 0.1 if name.endswith(("norm1.weight", "norm2.weight", "norm.weight", "position")) else 0.4
            parameter.add_(scale * noise)
    return cascade


def images(shape, batch=3, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 2, *SHAPES[shape][0], generator=generator, dtype=torch.float64)


def oracle(cascade, x, shape, norm, features, relations):
    reuse = {"feature_reuse": features, "relation_reuse": relations}
    return cascade_oracle.cascade(
        cascade.state_dict(keep_vars=True), x, splits=SHAPES[shape][1], depth=2, heads=4, norm=norm, **reuse
    )


@pytest.mark.parametrize(
    ("shape", "reuse", "norm"),
    [
        # Everything reused on every grid with both norms; one kind, the other and none where the grids are odd, with DTN.
        pytest.param(*(shape, reuse, norm), marks=[] if reuse == "both" or (norm, shape) in BY_HALVES else [pytest.mark.slow])
        for shape in SHAPES
        for reuse in REUSE
        for norm in ("ln", "dtn")
    ],
)
def test_logits_and_gradients_are_those_of_the_equations(shape, reuse, norm):
    features, relations = REUSE[reuse]
    cascade = build(shape, norm=norm, feature_reuse=features, relation_reuse=relations)
    x = images(shape)
    ours, theirs = cascade(x), oracle(cascade, x, shape, norm, features, relations)
    assert len(ours) == len(SHAPES[shape][1])
    named = dict(cascade.named_parameters())
    grads = [
        torch.autograd.grad(sum(logits.square().sum() for logits in found), list(named.values()), allow_unused=True)
        for found in (ours, theirs)
    ]
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    for name, one, other in zip(named, *grads, strict=True):
        assert one is not None and other is not None, name
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9, msg=name)


def test_qkv_bias_learned_positions_and_eps():
    shape = "two square grids"
    cascade = build(shape, qkv_bias=True, positions="learned", eps=0.3)
    assert isinstance(cascade.exits[1].pos_embed, torch.nn.Parameter)
    assert not isinstance(build(shape).exits[1].pos_embed, torch.nn.Parameter)
    reuse = {"splits": SHAPES[shape][1], "depth": 2, "heads": 4}
    x = images(shape)
    wanted = cascade_oracle.cascade(cascade.state_dict(), x, eps=0.3, **reuse)
    for one, other in zip(cascade(x), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("pool", ["token", "mean"])
def test_exits_of_their_own_depth_with_norms_in_their_stems(pool):
    shape, depths = "stems of convolutions", (1, 3)
    tokens = {"kind": "conv", "norm": "bn", "pool": pool}
    cascade = build(shape, depth=depths, tokens=tokens, relation_reuse=False)
    assert [len(exit.blocks) for exit in cascade.exits] == [1, 3]
    with torch.no_grad():
        for name, buffer in cascade.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.copy_(torch.rand_like(buffer) + 0.5)
    x = images(shape)
    given = {"splits": SHAPES[shape][1], "depth": depths, "heads": 4, "relation_reuse": False, "pool": pool}
    wanted = cascade_oracle.cascade(cascade.state_dict(), x, **given)
    for one, other in zip(cascade(x), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("cached", [1, 50, 2000])
def test_relations_are_mixed_the_same_in_pieces_of_any_size(monkeypatch, cached):
    cascade, x = build("two square grids"), images("two square grids", batch=5)
    whole = cascade(x)
    monkeypatch.setattr("dynavit.models.cascade.reuse.CACHED", cached)
    for one, other in zip(cascade(x), whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reuse", REUSE)
def test_detach_keeps_gradients_from_the_exits_before(reuse):
    features, relations = REUSE[reuse]
    for detach in (False, True):
        cascade = build("two square grids", feature_reuse=features, relation_reuse=relations, detach=detach)
        cascade(images("two square grids"))[1].sum().backward()
        reached = any(parameter.grad is not None and parameter.grad.any() for parameter in cascade.exits[0].parameters())
        assert reached == (not detach and (features or relations))
        assert all(parameter.grad is not None for parameter in cascade.exits[1].parameters())


def test_only_what_a_later_exit_reuses_is_carried_on():
    for features, relations in REUSE.values():
        cascade = build("four exits", feature_reuse=features, relation_reuse=relations)
        state = cascade.begin(images("four exits"))
        for at in range(4):
            _, state = cascade.step(state)
            assert (state.features is not None) == (features and at < 3)
            assert (state.relations is not None) == (relations and at < 3)


def test_the_last_exit_never_forms_its_attention_logits(monkeypatch):
    fused, softmax = [], []
    attention, plain = torch.nn.functional.scaled_dot_product_attention, torch.Tensor.softmax
    monkeypatch.setattr(
        "torch.nn.functional.scaled_dot_product_attention", lambda *a, **k: fused.append(k["attn_mask"]) or attention(*a, **k)
    )
    monkeypatch.setattr(torch.Tensor, "softmax", lambda self, dim: softmax.append(self.shape) or plain(self, dim))
    cascade = build("two square grids")
    cascade(images("two square grids"))
    assert [mask.shape for mask in fused] == [(3, 4, 37, 37)] * 2
    assert softmax == [(3, 4, 10, 10)] * 2
    softmax.clear()
    build("two square grids", relation_reuse=False)(images("two square grids"))
    assert not softmax


# --- DTN inside


def test_dtn_at_both_norms_with_the_heads_of_attention():
    cascade = dynavit.create_model("dvt_vit_micro", norm="dtn")
    norms = [(block.norm1, block.norm2) for block in cascade.exits[1].blocks]
    assert {(type(norm), norm.dim, norm.heads, norm.num_prefix_tokens) for pair in norms for norm in pair} == {
        (dynavit.DynamicTokenNorm, 64, 4, 1),
        (dynavit.DynamicTokenNorm, 64 + 16, 4, 1),
    }


def test_a_norm_with_heads_keeps_a_tokens_channel_with_its_head():
    """Each head of norm2 has its own channels of x, and after them its share of the reused ones."""
    cascade = build("two square grids", norm="dtn")
    block = cascade.exits[1].blocks[0]
    seen = []
    block.norm2.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    block.mlp.register_forward_hook(lambda module, inputs, output: seen.append(output))
    after = []
    block.register_forward_hook(lambda module, inputs, output: after.append(output[0]))
    cascade(images("two square grids"))
    x = after[0] - seen[1]  # the residual stream beside the MLP
    heads = seen[0].unflatten(-1, (4, 6))
    torch.testing.assert_close(heads[..., :4].flatten(-2), x)
    assert not heads[:, 0, :, 4:].any() and heads[:, 1:, :, 4:].all()  # the class token reuses nothing


def test_reused_channels_that_cannot_be_shared_out():
    with pytest.raises(ValueError, match="10 reused channels cannot be shared out to 4 heads of the norm 'dtn'"):
        build("two square grids", norm="dtn", feature_width=10)
    build("two square grids", norm="ln", feature_width=10)
    build("two square grids", norm="dtn", feature_width=10, feature_reuse=False)


# --- options in groups, and flat as older files hold them


GROUPED = {  # flat -> grouped
    "feature_reuse": (False, {"reuse": {"feature": False}}),
    "relation_reuse": (False, {"reuse": {"relation": False}}),
    "feature_hidden": (8, {"reuse": {"hidden": 8}}),
    "feature_width": (20, {"reuse": {"width": 20}}),
    "detach": (True, {"reuse": {"detach": True}}),
    "splits": ([[[8, 8, 0]], [[2, 2, 0]]], {"tokens": {"splits": [[[8, 8, 0]], [[2, 2, 0]]]}}),
    "tokens": ("conv", {"tokens": {"kind": "conv"}}),
    "token_width": (6, {"tokens": {"width": 6}}),
    "token_drop_rate": (0.3, {"tokens": {"drop_rate": 0.3}}),
    "positions": ("sinusoid", {"tokens": {"positions": "sinusoid"}}),
    "embed_dim": (32, {"blocks": {"embed_dim": 32}}),
    "depth": (2, {"blocks": {"depth": 2}}),
    "heads": (2, {"blocks": {"heads": 2}}),
    "mlp_ratio": (3.0, {"blocks": {"mlp_ratio": 3.0}}),
    "qkv_bias": (True, {"blocks": {"qkv_bias": True}}),
    "eps": (0.3, {"blocks": {"eps": 0.3}}),
    "drop_path_rate": (0.5, {"blocks": {"drop_path_rate": 0.5}}),
}


def test_every_flat_name_is_compared_with_its_group():
    assert set(GROUPED) == {*FLAT, "tokens"} == {*Cascade.flat_options, "tokens"}


@pytest.mark.parametrize("option", GROUPED)
def test_flat_and_grouped_options_give_the_same_model(option):
    flat, grouped = GROUPED[option]
    wide = {"splits": (((3, 2, 1), (3, 2, 1)), ((3, 1, 1), (3, 2, 1)))} if option.startswith("token") else {}
    as_dataclass = {group: dataclass_of(group, wide | values) for group, values in grouped.items()}
    models = []
    for options in ({option: flat, **wide}, grouped | wide, as_dataclass, wide):
        torch.manual_seed(0)
        models.append(dynavit.create_model("dvt_vit_digits", **options))
    one, other, third, without = (describe(model) for model in models)
    assert one == other == third
    assert one != without  # the option has an effect


def dataclass_of(group, values):
    defaults = {"tokens": Tokens((((4, 4, 0),), ((2, 2, 0),)), positions="learned"), "blocks": Blocks(48, 3, 4, 2.0)}
    return dataclasses.replace(defaults.get(group, Reuse(hidden=24, width=12)), **values)


def describe(model):
    """All that distinguishes two cascades: parameters, what they compute in training, and their gradients."""
    torch.manual_seed(1)
    logits = model(torch.randn(2, 3, 8, 8))
    sum(one.square().sum() for one in logits).backward()
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    numbers = [*model.state_dict().values(), *logits, *grads]
    return repr(model), [value.detach().numpy().tobytes() for value in numbers]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reuse": {"featur": True}}, "unknown option in the group 'reuse' of a cascade 'featur'. Did you mean 'feature'"),
        ({"reuse": {"feature": True}, "feature_reuse": True}, "reuse.feature is given twice: in its group, and flat"),
        ({"token": {"kind": "conv"}}, "unknown option of model 'dvt_vit_digits' 'token'. Did you mean 'tokens'"),
        ({"tokens": {"kind": "hard"}}, "unknown kind of tokens 'hard'"),
        ({"tokens": {"splits": [[[3, 2]]]}}, "one .kernel, stride, padding. for each step"),
        ({"tokens": {"pool": "men"}}, "unknown pool 'men'. Did you mean 'mean'"),
        ({"tokens": {"norm": "bn"}}, "a norm between steps, 'bn', is for tokens of the kind \"conv\""),
        (
            {"tokens": {"norm": "bn", "kind": "conv"}},
            "nothing stands between the steps of a single convolution, so no norm 'bn'",
        ),
        ({"depth": [2, 3, 4]}, "2 exits need one depth, or one for each of them, at least 1; got .2, 3, 4."),
        ({"depth": [2, 0]}, "at least 1; got .2, 0."),
        ({"depth": [2, 3]}, "exits of different depths, .2, 3., cannot reuse relations; take relation_reuse=False"),
    ],
)
def test_groups_that_cannot_be_understood(options, message):
    with pytest.raises(ValueError, match=message):
        dynavit.create_model("dvt_vit_digits", **options)


# --- named models


@pytest.mark.parametrize(
    ("name", "size", "grids", "millions"),
    [
        ("dvt_t2t_vit_12", 224, [7, 10, 14], 22.46),
        pytest.param("dvt_t2t_vit_14", 224, [7, 10, 14], 67.88, marks=pytest.mark.slow),
        pytest.param("dvt_deit_small", 224, [7, 10, 14], 70.44, marks=pytest.mark.slow),
        ("dvt_deit_tiny", 224, [7, 10, 14], 19.36),
        ("dvt_vit_micro", 32, [4, 8], 0.527),
        ("dvt_vit_mini", 32, [4, 8], 0.702),
        ("dvt_vit_digits", 8, [2, 4], 0.127),
    ],
)
def test_named_models(name, size, grids, millions):
    with torch.device("meta"):
        cascade = dynavit.create_model(name)
    assert cascade.img_size == (size, size) and [exit.grid for exit in cascade.exits] == [(side, side) for side in grids]
    stored = sum(value.numel() for value in cascade.state_dict().values())
    assert stored / 1e6 == pytest.approx(millions, abs=0.0051)


@pytest.mark.parametrize(
    ("name", "norm"),
    [("dvt_vit_micro", "dtn"), ("dvt_vit_mini", "dtn"), pytest.param("dvt_vit_digits", "ln", marks=pytest.mark.slow)],
)
def test_small_models_train(name, norm):
    torch.manual_seed(0)
    cascade = dynavit.create_model(name, norm, num_classes=3, in_chans=1, drop_path_rate=0.1)
    x = torch.randn(6, 1, *cascade.img_size)
    optimiser = torch.optim.AdamW(cascade.parameters(), lr=3e-3)
    losses = []
    for _ in range(10):
        loss = sum(torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2] * 2)) for logits in cascade(x))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert all(parameter.grad is not None for parameter in cascade.parameters())
    assert losses[-1] < 0.8 * losses[0]


def test_other_sizes_of_images():
    cascade = dynavit.create_model("dvt_vit_micro", img_size=(28, 36), in_chans=1).eval()
    assert [exit.grid for exit in cascade.exits] == [(3, 4), (7, 9)]
    assert [logits.shape for logits in cascade(torch.randn(2, 1, 28, 36))] == [(2, 10)] * 2


def test_convolutions_keep_torchs_init_and_linears_get_the_models():
    torch.manual_seed(0)
    exit = dynavit.create_model("dvt_deit_small", depth=1).exits[1]
    assert exit.blocks[0].mlp.fc1.weight.std().item() == pytest.approx(0.02, rel=0.03)
    bound = exit.relation_reuse.expand.in_channels**-0.5
    assert 0.9 * bound < exit.relation_reuse.expand.weight.abs().max() <= bound
    assert not exit.head.bias.any() and exit.cls_token.any() and exit.pos_embed.any()


def test_half_precision_by_autocast():
    torch.manual_seed(0)
    cascade = dynavit.create_model("dvt_vit_micro").eval()
    x = torch.randn(4, 3, 32, 32)
    with torch.autocast("cpu", torch.bfloat16):
        logits = cascade(x)
        sum(one.float().square().sum() for one in logits).backward()
    for one, other in zip(logits, cascade(x), strict=True):
        assert (one.float() - other).abs().max() < 0.05 * other.std() + 0.02


@pytest.mark.slow
def test_exported_with_any_batch_size():
    cascade, x = build("two square grids"), images("two square grids")
    program = torch.export.export(cascade, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    more = images("two square grids", batch=5, seed=7)
    for one, other in zip(program.module()(more), cascade(more), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_exits_are_compiled_one_by_one(monkeypatch):
    """With the caller's options; names of parameters stay as they are."""
    cascade, asked = build("two square grids"), []
    names = [*cascade.state_dict()]
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module, **options: asked.append((module, options)))
    cascade.compile_exits(dynamic=True)
    assert asked == [(exit, {"dynamic": True}) for exit in cascade.exits]
    assert [*cascade.state_dict()] == names


# torch 2.13's inductor uses torch.jit, which warns.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
def test_compiled_exits_give_the_same_logits():
    cascade, x = build("two square grids"), images("two square grids")
    plain = [logits.detach() for logits in cascade(x)]
    names = [*cascade.state_dict()]
    cascade.compile_exits()
    with torch.no_grad():
        torch.testing.assert_close([*cascade(x)], plain, rtol=1e-10, atol=1e-10)
    assert [*cascade.state_dict()] == names


# --- refusals


def test_images_of_another_size_are_refused():
    cascade = dynavit.create_model("dvt_vit_digits")
    for shape in ((2, 3, 9, 8), (2, 1, 8, 8), (3, 8, 8)):
        with pytest.raises(ValueError, match=r"got images of shape .* built for \(batch, 3, 8, 8\)"):
            cascade(torch.zeros(shape))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"splits": ()}, "each exit needs the splits"),
        ({"tokens": "hard"}, "kind of tokens"),
        ({"splits": ((), ((2, 2, 0),))}, "each exit needs the splits"),
        ({"img_size": 3}, "an image of 3x3 is too small for the convolutions"),
        ({"heads": 5}, "48 channels cannot be split into 5 heads"),
        ({"positions": "sinus"}, "unknown kind of positions 'sinus'. Did you mean 'sinusoid'"),
        ({"norm": "dtm"}, "unknown norm 'dtm'"),
        ({"feature_resuse": True}, "unknown option of model 'dvt_vit_digits' 'feature_resuse'. Did you mean 'feature_reuse'"),
    ],
)
def test_impossible_options(options, message):
    with pytest.raises(ValueError, match=message):
        dynavit.create_model("dvt_vit_digits", **options)
