"""The grid that reaches a swapped norm, in whatever way the model is called.

The oracle is the same model with norms that are told their grid by hand.
"""

import copy
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from dynavit.convert import MissingGridError, swap_norms, token_grid
from dynavit.convert.grid import halvings, map_size
from dynavit.convert.site_hook import hook_of
from dynavit.norms import DynamicTokenNorm

DIM, HEADS, PATCH = 12, 3, 4
GRIDS = [(4, 9), (9, 4), (8, 18), (7, 28), (14, 14), (1, 16), (16, 1)]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_heads = HEADS
        self.qkv = nn.Linear(DIM, 3 * DIM)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Block(nn.Module):
    def __init__(self, post=False):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(DIM), Attention()
        self.norm2, self.mlp = nn.LayerNorm(DIM), nn.Sequential(nn.Linear(DIM, DIM), nn.GELU())
        self.post = post

    def forward(self, x):
        if self.post:  # the norm's input is not the block's
            x = x + self.norm1(self.attn(x))
            return x + self.norm2(self.mlp(x))
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Tiny(nn.Module):
    """A ViT of any resolution; `how` is how its blocks are run."""

    def __init__(self, prefix=1, how="plain", post=False):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, DIM, PATCH, PATCH)
        self.cls_token = nn.Parameter(torch.randn(1, prefix, DIM)) if prefix else None
        self.blocks = nn.Sequential(*(Block(post) for _ in range(3)))
        self.norm = nn.LayerNorm(DIM)
        self.img_size = 32
        self.how = how

    def forward(self, image):
        return self.forward_features(image).mean(1)

    def forward_features(self, image):
        x = self.patch_embed(image).flatten(2).transpose(1, 2)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)
        return self.norm(self.run_blocks(x))

    def run_blocks(self, x):
        if self.how == "plain":
            return self.blocks(x)
        if self.how == "segments":
            return checkpoint_sequential(self.blocks, 2, x, use_reentrant=False)
        if self.how == "segments, reentrant":
            return checkpoint_sequential(self.blocks, 2, x, use_reentrant=True)
        for block in self.blocks:
            if self.how in ("reentrant", "not reentrant"):
                x = checkpoint(block, x, use_reentrant=self.how == "reentrant")
            else:  # pieces that are no modules
                x = checkpoint(lambda y, block=block: y + block.attn(block.norm1(y)), x, use_reentrant="not" not in self.how)
                x = checkpoint(lambda y, block=block: y + block.mlp(block.norm2(y)), x, use_reentrant="not" not in self.how)
        return x


WAYS = ["plain", "reentrant", "not reentrant", "segments", "segments, reentrant", "pieces, reentrant", "pieces, not reentrant"]


def image(grid, seed=0, batch=2):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, 3, grid[0] * PATCH, grid[1] * PATCH, generator=generator, dtype=torch.float64)
    return x.requires_grad_()


def swapped(**options):
    torch.manual_seed(0)
    model = swap_norms(Tiny(**options).double(), "dtn", start="fresh", norm_options={"backend": "torch"})
    for norm in norms_of(model):  # away from symmetric values, so that a wrong grid shows
        nn.init.normal_(norm.position, std=0.3)
    return model


def norms_of(model):
    return [module for module in model.modules() if isinstance(module, DynamicTokenNorm)]


def told(model, grid):
    """The oracle: no carrier, no hooks; each norm is told."""
    model = copy.deepcopy(model)
    model.how = "plain"
    for norm in norms_of(model):
        norm._forward_pre_hooks.clear()
        norm.forward = lambda x, norm=norm: DynamicTokenNorm.forward(norm, x, grid=grid)
    return model


def gradients(model):
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def assert_same(model, oracles):
    """Gradients of the model are those of the oracles together."""
    for parameters in zip(model.parameters(), *(o.parameters() for o in oracles), strict=True):
        mine, *theirs = (p.grad for p in parameters)
        expected = sum(t for t in theirs if t is not None)
        if mine is not None:
            torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_every_grid_arrives(grid, prefix):
    model = swapped(prefix=prefix)
    oracle = told(model, grid)
    x = image(grid)
    y = model(x)
    torch.testing.assert_close(y, oracle(x), rtol=1e-12, atol=1e-12)
    y.square().sum().backward()
    oracle(image(grid)).square().sum().backward()
    assert_same(model, [oracle])


def test_a_wrong_grid_would_show():
    model = swapped()
    assert (model(image((4, 9))) - told(model, (9, 4))(image((4, 9)))).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("how", "post"),
    [
        pytest.param(how, post, marks=[pytest.mark.slow] if post and at % 2 else [])
        for at, how in enumerate(WAYS)
        for post in (False, True)
    ],
)
def test_two_resolutions_in_flight(how, post):
    """4x9 and 9x4 have the same number of tokens: when the first is recomputed, only its own tensors can tell."""
    if post and how.startswith("pieces"):
        how = "not reentrant"  # the pieces are those of a block with norms in front
    model = swapped(how=how, post=post)
    grids = [(4, 9), (9, 4), (6, 6), (4, 9)]
    outputs = [model(image(grid, seed)) for seed, grid in enumerate(grids)]
    sum(y.square().sum() for y in outputs).backward()
    oracles = [told(model, grid) for grid in grids]
    for oracle in oracles:
        oracle.zero_grad()
    for seed, (grid, oracle, y) in enumerate(zip(grids, oracles, outputs, strict=True)):
        expected = oracle(image(grid, seed))
        torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
        expected.square().sum().backward()
    assert_same(model, oracles)


def test_the_whole_model_recomputed():
    model = swapped()
    outputs = [checkpoint(model, image(grid), use_reentrant=False) for grid in ((4, 9), (9, 4))]
    sum(y.square().sum() for y in outputs).backward()
    oracles = [told(model, grid) for grid in ((4, 9), (9, 4))]
    for oracle, grid in zip(oracles, ((4, 9), (9, 4)), strict=True):
        oracle.zero_grad()
        oracle(image(grid)).square().sum().backward()
    assert_same(model, oracles)


def test_recomputation_from_moved_activations():
    """Saved tensors that come back from elsewhere have another storage; one grid per token count is still certain."""
    model = swapped(how="not reentrant")
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone()):
        y = model(image((4, 9)))
        y.square().sum().backward()
    oracle = told(model, (4, 9))
    oracle.zero_grad()
    oracle(image((4, 9))).square().sum().backward()
    assert_same(model, [oracle])


def test_recomputation_that_cannot_be_told_apart_raises():
    model = swapped(how="not reentrant")
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone()):
        y = model(image((4, 9))).sum() + model(image((9, 4))).sum()
        with pytest.raises(MissingGridError, match="4x9 or 9x4"):
            y.backward()


def test_recomputation_does_not_read_what_a_later_image_has_left():
    model = swapped(how="not reentrant")
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone()):
        y = model.forward_features(image((4, 9))).sum()
        model.forward_features(image((9, 4)))
        with pytest.raises(MissingGridError, match="4x9 or 9x4"):
            y.backward()


def test_forward_features_without_the_model():
    model = swapped()
    for grid in ((4, 9), (9, 4)):
        torch.testing.assert_close(model.forward_features(image(grid)), told(model, grid).forward_features(image(grid)))


def test_threads_do_not_meet():
    model = swapped()
    grids = [(4, 9), (9, 4)] * 4
    barrier = threading.Barrier(len(grids))
    results = {}

    # Everyone waits between the patch embedding and the first norm: a shared memory would be overwritten by then.
    def wait(*_):
        barrier.wait(timeout=60)

    model.patch_embed.register_forward_hook(wait)

    def run(index):
        results[index] = model(image(grids[index], index)).detach()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(grids))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    model.patch_embed._forward_hooks.popitem()
    for index, grid in enumerate(grids):
        torch.testing.assert_close(results[index], told(model, grid)(image(grid, index)).detach())


def test_a_missing_grid_is_an_error_that_says_what_to_do():
    model = swapped(prefix=0)
    tokens = torch.randn(2, 196, DIM, dtype=torch.float64)
    with pytest.raises(MissingGridError, match=r"blocks.0.norm1: got 196 tokens.*token_grid"):
        model.blocks(tokens)
    with token_grid(7, 28):
        y = model.blocks(tokens)
    torch.testing.assert_close(y, told(model, (7, 28)).blocks(tokens))
    with pytest.raises(MissingGridError), token_grid(14, 13):
        model.blocks(tokens)


def test_after_a_call_nothing_is_left():
    model = swapped(prefix=0)
    model(image((14, 14)))
    with pytest.raises(MissingGridError, match="196 tokens"):
        model.blocks(torch.randn(2, 196, DIM, dtype=torch.float64))


def test_after_an_error_nothing_is_left():
    model = swapped(prefix=0)
    model.norm.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(image((14, 14)))
    with pytest.raises(MissingGridError, match="196 tokens"):
        model.blocks(torch.randn(2, 196, DIM, dtype=torch.float64))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_have_a_carrier_of_their_own(copied):
    model = swapped()
    other = copied(model)
    assert hook_of(other.blocks[0].norm1).carrier is hook_of(other.blocks[2].norm2).carrier
    assert hook_of(other.blocks[0].norm1).carrier is not hook_of(model.blocks[0].norm1).carrier
    torch.testing.assert_close(other(image((4, 9))), told(model, (4, 9))(image((4, 9))))


def test_memory_of_tensors_is_bounded():
    model = swapped()
    carrier = hook_of(model.blocks[0].norm1).carrier
    carrier._limit = 50
    with torch.no_grad():
        for _ in range(30):
            model(image((4, 4)))
    assert len(carrier._bound) < 2200
    carrier._limit = 50
    with torch.no_grad():
        model(image((4, 4)))
    assert len(carrier._bound) < 60


def test_an_explicit_grid_wins():
    model = swapped(prefix=0)
    norm = model.blocks[0].norm1
    x = torch.randn(2, 36, DIM, dtype=torch.float64)
    torch.testing.assert_close(norm(x, grid=(4, 9)), DynamicTokenNorm.forward(norm, x, grid=(4, 9)))


def test_halvings():
    assert list(halvings((14, 7))) == [(7, 4), (7, 3), (4, 2), (3, 1), (2, 1), (1, 1), (1, 1), (1, 1)]


def test_ambiguous_maps_raise():
    class Two(Tiny):
        def __init__(self):
            super().__init__(prefix=0)
            self.turned = nn.Conv2d(DIM, DIM, 1)

        def forward_features(self, image):
            x = self.patch_embed(image)
            self.turned(x.transpose(2, 3))
            return self.norm(self.blocks(x.flatten(2).transpose(1, 2)))

    model = swap_norms(Two().double(), "dtn", input_size=(32, 32))
    model(image((8, 8)))
    with pytest.raises(MissingGridError, match="4x9 or 9x4"):
        model(image((4, 9)))


def test_unfold_with_sides_in_a_list():
    """As TNT of timm writes it."""
    unfold, image = nn.Unfold([4, 4], stride=[4, 2]), torch.randn(1, 3, 16, 12)
    size = map_size(unfold, (image,), unfold(image))
    assert size == (4, 5) and size[0] * size[1] == unfold(image).shape[-1]
