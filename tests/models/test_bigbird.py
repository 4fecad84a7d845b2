"""BigBird in blocks against dense attention with its mask written out."""

import numpy as np
import pytest
import torch

from dynavit.models import bigbird
from dynavit.models.bigbird import BigBirdAttention, block_pattern


def made(length, heads=2, dim=8, **options):
    torch.manual_seed(0)
    return BigBirdAttention(dim, heads, length, **options).double()


def tokens(length, batch=3, dim=8, seed=1):
    return torch.randn(batch, length, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def prefix_mask(lengths, width):
    return torch.arange(width) < torch.tensor(lengths)[:, None]


def neighbours(attention, head, block):
    """N(i) of the definition, from the blocks that were drawn."""
    n = attention.blocks
    if n <= 4 or block in (0, n - 1):
        return set(range(n))
    return {0, block - 1, block, block + 1, n - 1} | {b for b in attention.pattern[head, block - 1].tolist() if b >= 0}


def dense(attention, x, mask=None):
    """Softmax over an explicit (t, t) mask for each head."""
    b, t, c = x.shape
    heads = attention.heads
    q, k, v = attention.qkv(x).reshape(b, t, 3, heads, c // heads).permute(2, 0, 3, 1, 4)
    block_of = [place // attention.block for place in range(t)]
    near = [[neighbours(attention, head, i) for i in block_of] for head in range(heads)]
    sees = torch.tensor([[[j in seen for j in block_of] for seen in of_head] for of_head in near])
    if mask is not None:
        sees = sees & mask[:, None, None, :]
    logits = (q @ k.mT / (c // heads) ** 0.5).masked_fill(~sees, -torch.inf)
    return attention.proj((logits.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


@pytest.mark.parametrize("length", [7, 8, 9, 16, 20, 21, 37, 50])
@pytest.mark.parametrize("random", [0, 1, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_blocks_equal_the_dense_mask(length, random, masked):
    attention, x = made(length, block=4, random=random), tokens(length)
    mask = prefix_mask([length, 1 + length // 2, 1], length) if masked else None
    found, expected = attention(x, mask=mask), dense(attention, x, mask)
    real = slice(None) if mask is None else mask
    torch.testing.assert_close(found[real], expected[real], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", [1, 8, 12, 16])
def test_up_to_four_blocks_it_is_full_attention(length):
    attention, x = made(length, block=4, random=0), tokens(length)
    q, k, v = attention.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    full = attention.proj(((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x), full, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("blocks", [5, 6, 9])
def test_with_all_others_drawn_it_is_full_attention_and_else_it_is_not(blocks):
    length = 4 * blocks
    x = tokens(length)
    attention, narrow = made(length, block=4, random=blocks), made(length, block=4, random=0)
    q, k, v = attention.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    full = attention.proj(((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x), full, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(narrow(x), full, rtol=1e-3)


def test_shorter_sequences_keep_the_blocks_of_the_longest():
    attention, x = made(40, block=4, random=2), tokens(23)
    padded = torch.cat([x, tokens(17, seed=2)], 1)
    torch.testing.assert_close(attention(x), attention(padded, mask=prefix_mask([23] * 3, 40))[:, :23], rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="got 41 tokens, was built for 40"):
        attention(tokens(41))


def test_drawn_blocks_of_the_arenas_size():
    """32 blocks of 64: three different ones among the first 16, none of them a neighbour; written out again from its text."""
    numbers = np.random.RandomState(2)
    pattern = block_pattern(8, 32, 3, 16, seed=2)
    for head in range(8):
        for i in range(1, 31):
            pool = {29: range(1, 12), 30: range(1, 13)}.get(i, [j for j in range(1, 16) if j not in (i - 1, i, i + 1)])
            drawn = numbers.permutation(list(pool))[:3].tolist()
            row = [j for j in pattern[head, i - 1].tolist() if j >= 0]
            assert len(row) == len(set(row)) and set(row) == {0, i - 1, i, i + 1, 31, *drawn}
            assert len(set(drawn)) == 3 and not {i - 1, i, i + 1} & set(drawn) and max(drawn) <= 15
    assert pattern.shape == (8, 30, 8)
    assert not np.array_equal(pattern, block_pattern(8, 32, 3, 16, seed=3))


def test_the_pattern_is_stored_and_the_same_in_training():
    attention, other = made(40, block=4, random=1, seed=1), made(40, block=4, random=1, seed=5)
    assert not torch.equal(attention.pattern, other.pattern)
    x = tokens(40)
    before = attention.train()(x)
    assert torch.equal(before, attention.eval()(x))
    other.load_state_dict(attention.state_dict())
    assert torch.equal(before, other(x))


def test_many_gathered_keys_are_taken_in_parts(monkeypatch):
    """With the same results and gradients."""
    attention, x = made(50, block=4, random=2), tokens(50).requires_grad_()

    def run():
        y = attention(x, mask=prefix_mask([50, 20, 3], 50))
        return y, *torch.autograd.grad(y.square().sum(), (x, *attention.parameters()))

    whole = run()
    monkeypatch.setattr(bigbird, "GATHERED", 3 * 3 * 8 * 4 * 7)
    for one, other in zip(whole, run(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_gradients():
    attention, mask = made(12, block=2, random=1), prefix_mask([12, 5], 12)
    x = tokens(12, batch=2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: attention(x, mask=mask)[mask], (x, *attention.parameters()), fast_mode=True)


@pytest.mark.parametrize("options", [{"block": 0}, {"random": -1}, {"random_limit": 3, "block": 4}])
def test_wrong_options(options):
    with pytest.raises(ValueError, match="BigBirdAttention: block="):
        made(40, **options)
