"""The Reformer in sorted chunks against dense attention with what each token sees written out."""

import math

import pytest
import torch

from dynavit.models.reformer import ArenaReformerAttention, ReformerAttention


def made(length, kind=ReformerAttention, heads=2, dim=8, **options):
    torch.manual_seed(0)
    return kind(dim, heads, length, **options).double()


def tokens(length, batch=3, dim=8, seed=1):
    return torch.randn(batch, length, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def prefix_mask(lengths, width):
    return torch.arange(width) < torch.tensor(lengths)[:, None]


def bucket(attention, q, round, head):
    """A number by its definition: the largest of [q R, -q R]."""
    rotations = attention.rotations[round, head if attention.rotations.shape[1] > 1 else 0]
    rotated = (q @ rotations).tolist()
    both = rotated + [-value for value in rotated]
    return both.index(max(both))


def dense(attention, x, mask=None):
    """For every row, head and round: sort, cut, look at two chunks; nothing is done in parallel."""
    b, t, c = x.shape
    heads, d, chunk, length = attention.heads, c // attention.heads, attention.chunk, attention.padded_length
    arena = isinstance(attention, ArenaReformerAttention)
    q = torch.nn.functional.pad(attention.to_q(x), (0, 0, 0, length - t)).unflatten(-1, (heads, d))
    v = torch.nn.functional.pad(attention.to_v(x), (0, 0, 0, length - t)).unflatten(-1, (heads, d))
    y = torch.zeros(b, t, heads, d, dtype=x.dtype)
    for row in range(b):
        real = [place < t and (mask is None or bool(mask[row, place])) for place in range(length)]
        for head in range(heads):
            own = q[row, :, head]
            keys = own if arena else own / own.norm(dim=-1, keepdim=True).clamp_min(1e-12)
            logits = own @ keys.T * (math.sqrt(d) if arena else 1 / math.sqrt(d))
            if not arena:
                logits = logits.masked_fill(torch.eye(length, dtype=torch.bool), -5e4)
            found, weights = [], []
            for round in range(attention.rotations.shape[0]):
                hashed = [bucket(attention, each, round, head) for each in own]
                hashed = [each if arena or real[i] else attention.buckets for i, each in enumerate(hashed)]
                order = sorted(range(length), key=lambda i: (hashed[i], i))
                chunk_of = {place: at // chunk for at, place in enumerate(order)}
                chunks = length // chunk
                allowed = torch.tensor(
                    [
                        [(real[j] or arena) and chunk_of[j] in (chunk_of[i], (chunk_of[i] - 1) % chunks) for j in range(length)]
                        for i in range(t)
                    ]
                )
                seen = logits[:t].masked_fill(~allowed, -math.inf)
                found.append(seen.softmax(-1) @ v[row, :, head])
                weights.append(seen.logsumexp(-1))
            share = torch.stack(weights).softmax(0)[..., None]
            y[row, :, head] = (share * torch.stack(found)).sum(0)
    y = y.flatten(2)
    return y if arena else attention.proj(y)


@pytest.mark.parametrize(("length", "chunk"), [(9, 3), (13, 3), (24, 4), (31, 8)])
@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_chunks_equal_what_each_token_sees(length, chunk, rounds, masked):
    attention, x = made(length, chunk=chunk, rounds=rounds), tokens(length)
    mask = prefix_mask([length, 1 + length // 2, 1], length) if masked else torch.ones(3, length, dtype=torch.bool)
    found, expected = attention(x, mask=mask), dense(attention, x, mask)
    torch.testing.assert_close(found[mask], expected[mask], rtol=1e-9, atol=1e-9)
    assert found.isfinite().all()


@pytest.mark.parametrize("length", [7, 20, 33])
def test_the_arenas_form_equals_its_description(length):
    attention, x = made(length, ArenaReformerAttention, buckets=4), 0.3 * tokens(length)
    torch.testing.assert_close(attention(x), dense(attention, x), rtol=1e-9, atol=1e-9)
    assert attention.rotations.shape == (1, 1, 4, 2) and not hasattr(attention, "proj")
    with torch.device("meta"):
        real = ArenaReformerAttention(512, 8, 2001)
    assert (real.chunk, real.padded_length) == (201, 2010)


def test_the_arenas_logits_leave_a_token_with_itself():
    """|q|^2 is about 64, times 8: nothing else matters."""
    torch.manual_seed(0)
    attention = ArenaReformerAttention(64, 1, 40)
    x = torch.randn(2, 40, 64)
    torch.nn.init.eye_(attention.to_q.weight)
    torch.testing.assert_close(attention(x), attention.to_v(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("rounds", [1, 3])
def test_one_or_two_chunks_are_full_attention(chunks, rounds):
    """With one the keys come twice, with two each sees both; three do not see everything."""
    x = tokens(12)

    def full(attention):
        q, v = (linear(x).unflatten(-1, (2, 4)).transpose(1, 2) for linear in (attention.to_q, attention.to_v))
        k = torch.nn.functional.normalize(q, dim=-1)
        logits = (q @ k.mT / 2).masked_fill(torch.eye(12, dtype=torch.bool), -5e4)
        return attention.proj((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))

    attention = made(12, chunk=12 // chunks, rounds=rounds)
    torch.testing.assert_close(attention(x), full(attention), rtol=1e-12, atol=1e-12)
    three = made(12, chunk=4, rounds=1)
    assert not torch.allclose(three(x), full(three), rtol=1e-2)


def test_without_positions_order_does_not_matter():
    attention, x = made(12, chunk=6, rounds=2), tokens(12)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(attention(x)[:, order], attention(x[:, order]), rtol=1e-9, atol=1e-9)


def test_hashing():
    """Equal tokens share a bucket, opposite ones have opposite buckets, and an evaluation can be repeated."""
    attention = made(64, chunk=4, rounds=2)
    q = torch.randn(1, 2, 40, 4, dtype=torch.float64)
    there, opposite = attention.buckets_of(q), attention.buckets_of(-q)
    assert attention.buckets == 16 and there.unique().numel() > 4
    assert torch.equal(opposite, (there + 8) % 16)
    assert torch.equal(attention.buckets_of(2 * q), there)
    x = tokens(64)
    assert torch.equal(attention.train()(x), attention.eval()(x))
    other = made(64, chunk=4, rounds=2, seed=3)
    assert not torch.equal(other.rotations, attention.rotations)
    other.load_state_dict(attention.state_dict())
    assert torch.equal(other(x), attention(x))


def test_padding_is_seen_by_nobody():
    attention, x, mask = made(40, chunk=4, rounds=2), tokens(40), prefix_mask([40, 17, 3], 40)
    garbage = torch.where(mask[..., None], x, 1e4)
    assert torch.equal(attention(x, mask=mask)[mask], attention(garbage, mask=mask)[mask])
    short = attention(x[1:2, :17])
    torch.testing.assert_close(attention(x, mask=mask)[1, :17], short[0], rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="got 41 tokens, was built for 40"):
        attention(tokens(41))


@pytest.mark.parametrize("kind", [ReformerAttention, ArenaReformerAttention])
def test_gradients(kind):
    """With the hash as it is: sorting has none."""
    options = {"chunk": 2, "rounds": 2} if kind is ReformerAttention else {"buckets": 4}
    attention, mask = made(12, kind, **options), prefix_mask([12, 5], 12)
    x = (0.3 * tokens(12, batch=2)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: attention(x, mask=mask)[mask], (x, *attention.parameters()), fast_mode=True)


@pytest.mark.parametrize(
    ("options", "message"), [({"chunk": 0}, "chunk=0 is at least 1"), ({"rounds": 0}, "rounds of hashing are at least 1")]
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        made(40, **options)
    with pytest.raises(ValueError, match="buckets=3 even"):
        made(40, ArenaReformerAttention, buckets=3)
