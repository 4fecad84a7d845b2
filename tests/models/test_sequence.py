"""The transformer for sequences: padding changes nothing, every norm gets the mask."""

import pytest
import torch

import dynavit
from dynavit.norms import DynamicTokenNorm, LayerNorm
from dynavit.norms.factory import norm_class_of
from dynavit.norms.statistics.smoothed import SmoothedNorm

NORMS = [name for name in dynavit.list_norms() if name != "dtn_released"]  # that one is made for images
ONE_SAMPLE = [name for name in NORMS if not issubclass(norm_class_of(name), SmoothedNorm)]  # the others mix samples


def tiny(norm=None, **options):
    torch.manual_seed(0)
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


@pytest.mark.parametrize("pool", ["token", "mean"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("training", [True, False])
def test_garbage_in_padding_changes_nothing(norm, pool, training):
    mask = prefix_mask([20, 13, 4], 20)
    clean = ids(3, 20)
    garbage = torch.where(mask, clean, torch.tensor(-7_000_000))  # not even an id

    def run(tokens):
        model = tiny(norm, pool=pool).train(training)
        logits = model(tokens, mask)
        logits.square().sum().backward()
        return [logits, *(parameter.grad for parameter in model.parameters()), *model.buffers()]

    for one, other in zip(run(clean), run(garbage), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("pool", ["token", "mean"])
@pytest.mark.parametrize("norm", ONE_SAMPLE)
def test_a_padded_sequence_equals_the_short_one(norm, pool):
    model = tiny(norm, pool=pool)
    tokens, mask = ids(3, 30), prefix_mask([30, 17, 5], 30)
    padded = model(tokens, mask)
    for i, length in enumerate([30, 17, 5]):
        torch.testing.assert_close(padded[i], model(tokens[i : i + 1, :length])[0], rtol=1e-9, atol=1e-9)


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
    assert type(model.norm) is LayerNorm
    seen = []
    model.blocks[1].norm2.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[1:]))
    mask = prefix_mask([11, 3], 11)
    model(ids(2, 11), mask)
    ((grid, given),) = seen
    assert grid == (11,)
    assert torch.equal(given, torch.cat([torch.ones(2, 1, dtype=torch.bool), mask], 1))
    assert tiny("dtn", pool="mean").blocks[0].norm1.num_prefix_tokens == 0
    assert [type(block.norm1) for block in tiny("dtn", norm_blocks=1).blocks] == [DynamicTokenNorm, LayerNorm]


def test_order_matters():
    model = tiny()
    tokens = ids(1, 20)
    assert not torch.allclose(model(tokens), model(tokens.flip(1)), atol=1e-6)


def test_default_size():
    with torch.device("meta"):
        model = dynavit.create_model("sequence_transformer")
    c, hidden = 512, 2048
    block = (3 * c + c) * (c + 1) + hidden * (c + 1) + c * (hidden + 1) + 4 * c  # qkv, proj, fc1, fc2, two norms
    whole = 32 * c + 2000 * c + c + 6 * block + 2 * c + 10 * (c + 1)
    assert sum(parameter.numel() for parameter in model.parameters()) == whole
    assert len(model.blocks) == 6 and model.blocks[0].attn.heads == 8


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
