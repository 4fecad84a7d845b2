"""The transformer for sequences: padding changes nothing, every norm gets the mask."""

import re

import pytest
import torch

import dynavit
from dynavit.norms import DynamicTokenNorm, LayerNorm
from dynavit.norms.factory import norm_class_of
from dynavit.norms.statistics.smoothed import SmoothedNorm

KINDS = ("ln", "dtn", "bn", "in", "un")
NORMS = [name for name in dynavit.list_norms() if name != "dtn_released"]  # that one is made for images
ONE_SAMPLE = [name for name in NORMS if not issubclass(norm_class_of(name), SmoothedNorm)]  # the others mix samples


SEEDS = {"bigbird": {"seed": 0}, "reformer": {"seed": 0}}
ATTENTIONS = {"full": {}, "bigbird": {"block": 6, "random": 1}, "reformer": {"chunk": 6, "rounds": 2}}
in_every_form = pytest.mark.parametrize(
    ("attention", "pool"), [("full", "token"), ("full", "mean"), ("bigbird", "token"), ("reformer", "token")]
)


def tiny(norm=None, attention="full", **options):
    torch.manual_seed(0)
    options = {"attention": attention, "attention_options": ATTENTIONS.get(attention), **options}
    model = dynavit.create_model("test_sequence", norm, **options).double()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return model


def ids(*shape, seed=1):
    return torch.randint(12, shape, generator=torch.Generator().manual_seed(seed))


def prefix_mask(lengths, width):
    return torch.arange(width) < torch.tensor(lengths)[:, None]


@pytest.mark.parametrize(
    ("training", "norm", "attention", "pool"),
    [
        # Padding passes norms and attention one after the other: every norm once, every attention with a norm of each kind, in
        # training, where the most is computed; at evaluation one attention with a norm of each kind.
        pytest.param(
            *(training, norm, *how),
            marks=[] if (norm in KINDS) + (how == ("full", "token")) + training >= 2 else [pytest.mark.slow],
        )
        for training in (True, False)
        for how in [("full", "token"), ("full", "mean"), ("bigbird", "token"), ("reformer", "token")]
        for norm in NORMS
    ],
)
def test_garbage_in_padding_changes_nothing(training, norm, attention, pool):
    """Ids that do not exist, and large numbers in place of what padding holds before every block: equal to the bit."""
    mask = prefix_mask([40, 13, 4], 40)
    clean = ids(3, 40)

    def run(tokens, garbage):
        model = tiny(norm, attention=attention, pool=pool).train(training)
        real = torch.cat([torch.ones(3, model.num_prefix_tokens, dtype=torch.bool), mask], 1)[..., None]
        for block in model.blocks:
            block.register_forward_pre_hook(lambda _, given: (torch.where(real, given[0], garbage), *given[1:]))
        logits = model(tokens, mask)
        logits.square().sum().backward()
        return [logits, *(parameter.grad for parameter in model.parameters()), *model.buffers()]

    before, after = run(clean, 0.0), run(torch.where(mask, clean, torch.tensor(-7_000_000)), 1e3)
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("norm", ["bn", "in", "gn", "dtn"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_pad_blind_norms_do_see_padding(norm, attention):
    """The other arm of a comparison: the same weights, statistics over padding too, and so over however much there is."""
    mask, tokens = prefix_mask([40, 13, 4], 40), ids(3, 40)
    masked, blind = (tiny(norm, attention=attention, norm_mask=norm_mask).train() for norm_mask in (True, False))
    assert masked.state_dict().keys() == blind.state_dict().keys()
    assert not torch.allclose(masked(tokens, mask), blind(tokens, mask), rtol=1e-3)
    before = blind(tokens, mask)
    if attention == "full":
        assert not torch.allclose(before[1:], blind(tokens[1:, :13], mask[1:, :13]), rtol=1e-3)
    real = torch.cat([torch.ones(3, 1, dtype=torch.bool), mask], 1)[..., None]
    blind.blocks[0].register_forward_pre_hook(lambda _, given: (torch.where(real, given[0], 3.0), *given[1:]))
    assert not torch.allclose(before, blind(tokens, mask), rtol=1e-3)


@pytest.mark.parametrize("norm", ["ln", "rms", "scale"])
def test_norms_of_single_tokens_are_the_same_pad_blind(norm):
    mask, tokens = prefix_mask([40, 13, 4], 40), ids(3, 40)
    masked, blind = (tiny(norm, norm_mask=norm_mask)(tokens, mask) for norm_mask in (True, False))
    torch.testing.assert_close(masked, blind, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("attention", "pool"), [("full", "token"), ("full", "mean"), ("bigbird", "token"), ("reformer", "token")]
)
@pytest.mark.parametrize("norm", ONE_SAMPLE)
def test_how_far_a_row_is_padded_and_beside_what_changes_nothing(norm, attention, pool):
    """Attention in blocks or chunks is laid out for the longest sequence, whatever the batch: only `full` sees shorter ones."""
    model = tiny(norm, attention=attention, pool=pool)
    tokens, mask = ids(3, 30), prefix_mask([30, 17, 5], 30)
    padded = model(tokens, mask)
    for i, length in enumerate([30, 17, 5]):
        torch.testing.assert_close(padded[i], model(tokens[i : i + 1, :length])[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("norm", [norm for norm in NORMS if norm not in ONE_SAMPLE])
def test_a_row_alone_is_the_row_in_a_batch_at_evaluation(norm, attention):
    model = tiny(norm, attention=attention).eval()
    tokens, mask = ids(3, 30), prefix_mask([30, 17, 5], 30)
    padded = model(tokens, mask)
    for i in range(3):
        torch.testing.assert_close(padded[i], model(tokens[i : i + 1], mask[i : i + 1])[0], rtol=1e-9, atol=1e-9)


def test_the_arenas_reformer_sees_padding():
    """It has no mask, which its numbers were made with."""
    model = tiny(attention="reformer_arena", attention_options={"buckets": 4})
    tokens, mask = ids(2, 30), prefix_mask([30, 11], 30)
    garbage = torch.where(mask, tokens, (tokens + 1) % 12)
    assert torch.equal(model(tokens, mask), model(garbage, mask))  # ids of padding are not looked up
    shown = model(tokens)
    assert not torch.allclose(shown[1], model(garbage)[1], rtol=1e-3)


@pytest.mark.parametrize("norm", NORMS)
def test_a_mask_of_real_tokens_is_no_mask(norm):
    model = tiny(norm).eval()
    tokens = ids(2, 9)
    torch.testing.assert_close(model(tokens, torch.ones(2, 9, dtype=torch.bool)), model(tokens), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("pool", ["token", "mean"])
def test_an_empty_sequence_is_finite(pool):
    model = tiny("dtn", pool=pool)
    logits = model(ids(2, 8), prefix_mask([8, 0], 8))
    logits.square().sum().backward()
    assert logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_norms_are_one_dimensional_and_know_the_class_token():
    model = tiny("dtn")
    for block in model.blocks:
        for norm in (block.norm1, block.norm2):
            assert isinstance(norm, DynamicTokenNorm)
            assert (norm.ndim, norm.num_prefix_tokens, norm.heads) == (1, 1, 4)
    assert isinstance(model.norm, DynamicTokenNorm) and model.norm.num_prefix_tokens == 1  # all 2 depth + 1 of them
    seen = []
    model.blocks[1].norm2.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[1:]))
    mask = prefix_mask([11, 3], 11)
    model(ids(2, 11), mask)
    ((grid, given),) = seen
    assert grid == (11,)
    assert torch.equal(given, torch.cat([torch.ones(2, 1, dtype=torch.bool), mask], 1))
    assert tiny("dtn", pool="mean").blocks[0].norm1.num_prefix_tokens == 0
    some = tiny("dtn", norm_blocks=1)
    assert [type(norm) for norm in (some.blocks[0].norm1, some.blocks[1].norm1, some.norm)] == [
        DynamicTokenNorm,
        LayerNorm,
        LayerNorm,
    ]


def test_order_matters():
    model = tiny()
    tokens = ids(1, 20)
    assert not torch.allclose(model(tokens), model(tokens.flip(1)), atol=1e-6)


OF_2020, OF_2021 = {"depth": 6, "mlp_dim": 2048}, {"depth": 4, "mlp_dim": 1024}
ARENA = {"attention": "reformer_arena"}


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("sequence_transformer", {}, 19_983_370),
        ("sequence_transformer", OF_2020, 19_983_370),
        ("sequence_bigbird", OF_2020, 19_983_370),
        ("sequence_reformer", OF_2020 | ARENA, 16_837_642),
        ("sequence_transformer", OF_2020 | {"tied": True}, 4_231_690),
        ("sequence_transformer", OF_2021, 8_948_746),
        ("sequence_bigbird", OF_2021, 8_948_746),
        ("sequence_reformer", OF_2021 | ARENA, 6_851_594),
        ("sequence_transformer", OF_2021 | {"tied": True}, 2_646_538),
        ("sequence_transformer", OF_2020 | {"norm": "dtn"}, 19_983_370 + 13 * 32),
    ],
)
def test_the_arenas_models_have_these_many_parameters(name, options, count):
    with torch.device("meta"):
        model = dynavit.create_model(name, **options)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_tied_blocks_are_one_block_used_again(attention):
    one = tiny("dtn", attention=attention, depth=3, tied=True)
    many = tiny("dtn", attention=attention, depth=3, attention_options={**ATTENTIONS[attention], **SEEDS.get(attention, {})})
    own = one.state_dict()
    many.load_state_dict({name: own[re.sub(r"blocks\.\d", "blocks.0", name)] for name in many.state_dict()})
    tokens, mask = ids(2, 20), prefix_mask([20, 9], 20)
    torch.testing.assert_close(one(tokens, mask), many(tokens, mask), rtol=1e-12, atol=1e-12)
    assert len(one.blocks) == 1
    with pytest.raises(ValueError, match="norm_blocks=1 cannot be told apart"):
        tiny("dtn", tied=True, norm_blocks=1)


def test_the_start():
    """Embeddings N(0, 1), class vector 0, Xavier's uniform for attention and MLPs, LeCun's normal for the two last layers."""
    torch.manual_seed(0)
    model = dynavit.create_model("test_sequence", dim=128, mlp_dim=512, vocab_size=200)
    assert model.embed.weight.std().item() == pytest.approx(1, rel=0.02) and not model.cls_token.any()
    block = model.blocks[0]
    attention, mlp = [block.attn.qkv.weight, block.attn.proj.weight], [block.mlp.fc1.weight, block.mlp.fc2.weight]
    for weight, fans in [*((weight, 2 * 128) for weight in attention), *((weight, 128 + 512) for weight in mlp)]:
        limit = (6 / fans) ** 0.5
        assert 0.98 * limit < weight.abs().max() <= limit and weight.std().item() == pytest.approx(limit / 3**0.5, rel=0.03)
    assert 0 < block.mlp.fc1.bias.abs().max() < 1e-5 and block.attn.qkv.bias is None and block.attn.proj.bias is None
    assert model.hidden.weight.std().item() == pytest.approx(128**-0.5, rel=0.03) and not model.hidden.bias.any()
    assert model.head.weight.std().item() == pytest.approx(512**-0.5, rel=0.05) and not model.head.bias.any()


def test_only_full_attention_drops_its_weights():
    """As in the arena; the others drop what they give. `drop_rate` reaches all of them."""
    for attention in (*ATTENTIONS, "reformer_arena"):
        attn = tiny(attention=attention, drop_rate=0.3).blocks[0].attn
        assert attn.proj_drop.p == 0.3 and getattr(attn, "attn_drop", 0.0) == (0.3 if attention == "full" else 0.0)
        model, tokens = tiny(attention=attention, drop_rate=0.3).train(), ids(2, 30)
        assert not torch.equal(model(tokens), model(tokens))
        assert torch.equal(model.eval()(tokens), model(tokens))


def test_recalibrated_batch_norms_count_real_tokens_only():
    """Before an evaluation their memory becomes the moments over the real tokens of all rows, however long each is."""
    model, seen = tiny("bn"), []
    batches = [(ids(3, 40, seed=s), prefix_mask(lengths, 40)) for s, lengths in ((1, [40, 13, 4]), (2, [9, 25, 40]))]
    model.blocks[0].norm1.register_forward_pre_hook(lambda _, given: seen.append(given[0][given[2]]))
    dynavit.recalibrate(model, batches, call=lambda model, batch: model(*batch))
    real = torch.cat(seen)
    assert len(real) == 3 + 57 + 3 + 74  # with the class tokens
    norm = model.blocks[0].norm1
    torch.testing.assert_close(norm.running_mean, real.mean(0))
    torch.testing.assert_close(norm.running_var, real.var(0))  # unbiased, as torch keeps it


def test_positions_are_sinusoids_from_the_class_token_on():
    positions = tiny().positions[0]
    assert positions.shape == (41, 32)
    torch.testing.assert_close(positions[0, :4].float(), torch.tensor([0.0, 1.0, 0.0, 1.0]))
    torch.testing.assert_close(positions[1, :2].float(), torch.tensor([0.8414709848, 0.5403023059]))
    angle = torch.tensor(1 / 10000 ** (2 / 32), dtype=torch.float64)
    torch.testing.assert_close(positions[1, 2:4].float(), torch.stack([angle.sin(), angle.cos()]).float())
    assert not [name for name, _ in tiny().named_parameters() if "pos" in name]


def test_the_class_token_learns():
    model = tiny()
    model(ids(2, 9)).square().sum().backward()
    assert model.cls_token.grad.abs().sum() > 0


@pytest.mark.slow
def test_it_compiles_in_one_graph():
    model = tiny("dtn")
    tokens, mask = ids(3, 20), prefix_mask([20, 13, 4], 20)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(tokens, mask), model(tokens, mask))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tiny("dtn_released"), "'dtn_released' is made for images"),
        (lambda: tiny(pool="max"), "unknown pooling 'max'"),
        (lambda: tiny(attention="bigbirds"), "unknown attention 'bigbirds'. Did you mean 'bigbird'"),
        (lambda: tiny(attention_options={"block": 4}), "unknown option of the attention 'full' 'block'"),
        (lambda: tiny(attention="bigbird", attention_options={"blok": 4}), "'blok'. Did you mean 'block'"),
        (lambda: tiny("dtm"), "unknown norm 'dtm'"),
        (lambda: tiny()(ids(1, 41)), "41 tokens, but there are positions for max_len=40"),
        (lambda: tiny()(torch.zeros(2, 5)), "it takes integer ids"),
        (lambda: tiny()(ids(5)), "it takes integer ids"),
        (lambda: tiny()(ids(2, 5), torch.ones(2, 4, dtype=torch.bool)), "of the ids' shape"),
        (lambda: tiny()(ids(2, 5), torch.ones(2, 5)), "it is boolean"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
