"""The swap itself: what is carried over, where it starts, layouts, and that nothing goes round it."""

import copy

import pytest
import torch
from torch import nn

import dynavit
from convert.models import Language, LinearPatchViT, small_vit, timm_model
from dynavit.convert import apply_plan, plan_swap, swap_norms, unfreeze_norms
from dynavit.deploy.fold.frozen_dtn import FrozenTokenNorm
from dynavit.norms import DynamicTokenNorm, Norm
from dynavit.norms.dtn import DynamicTokenNorm as DTN
from dynavit.norms.factory import folds


def trained(model):
    """Affine weights that are not 1 and 0."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.weight.data += 0.2 * torch.randn(module.weight.shape, generator=generator)
            module.bias.data += 0.2 * torch.randn(module.bias.shape, generator=generator)
    return model


def norms_of(model):
    return [module for module in model.modules() if isinstance(module, Norm)]


def test_a_copy_is_changed_unless_in_place():
    model = small_vit()
    new = swap_norms(model, "dtn")
    assert new is not model
    assert not norms_of(model) and len(norms_of(new)) == 4
    assert not hasattr(model, "swap_plan")
    assert swap_norms(model, "dtn", inplace=True) is model
    assert len(norms_of(model)) == 4


def test_affine_weights_eps_and_switches_are_carried_over():
    model = trained(small_vit())
    model.blocks[0].norm1.eps = 3e-4
    model.blocks[0].norm1.weight.requires_grad_(False)
    model.blocks[0].norm2.eval()
    model.blocks[1].train()
    model.blocks[1].norm1 = nn.LayerNorm(192, elementwise_affine=False)
    model.blocks[1].norm2 = nn.LayerNorm(192, bias=False)
    model.double()
    new = swap_norms(model, "dtn", norm_options={"init": "trunc_normal"})
    norm = new.blocks[0].norm1
    assert norm.eps == 3e-4 and norm.init == "trunc_normal" and norm.heads == 3 and norm.num_prefix_tokens == 1
    assert torch.equal(norm.weight, model.blocks[0].norm1.weight) and not norm.weight.requires_grad
    assert torch.equal(norm.bias, model.blocks[0].norm1.bias) and norm.bias.requires_grad
    assert norm.position.dtype == torch.float64
    assert not new.blocks[0].norm2.training and new.blocks[1].norm1.training
    assert new.blocks[1].norm1.weight is None
    assert torch.equal(new.blocks[1].norm2.bias, torch.zeros(192, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_identity_is_the_original(dtype):
    model = trained(small_vit()).to(dtype)
    new = swap_norms(model, "dtn", start="identity")
    for norm in norms_of(new):
        assert torch.equal(norm.mixing_weights(torch.empty(0, dtype=dtype))[0], torch.ones(3, dtype=dtype))
        assert all(parameter.requires_grad for parameter in norm.parameters())
    x = torch.randn(3, 3, 64, 64, dtype=dtype)
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(new(x), model(x), rtol=tolerance, atol=tolerance)
    assert new.swap_plan.deviation < tolerance
    model(x).square().sum().backward()
    new(x).square().sum().backward()
    grads = [dict(m.named_parameters()) for m in (model, new)]
    for name, parameter in grads[0].items():
        torch.testing.assert_close(grads[1][name].grad, parameter.grad, rtol=50 * tolerance, atol=50 * tolerance)


@pytest.mark.parametrize("norm", ["dtn", "sn"])
def test_identity_learns_from_the_first_step(norm):
    """Equal logits at step 0; then each share moves against its slope unless that leads out of [0, 1], and position follows."""
    torch.manual_seed(0)
    # Pooled from patches: behind the last attention a class token does not depend on how patches are normalised.
    model = small_vit(global_pool="avg").double().train()
    new = swap_norms(model, norm, start="identity")
    x, y = torch.randn(4, 3, 64, 64, dtype=torch.float64), torch.arange(4)
    torch.testing.assert_close(new(x), model(x), rtol=1e-12, atol=1e-12)
    shares = {name: p for name, p in new.named_parameters() if name.endswith(("_share", "_rest"))}
    start = {name: p.detach().clone() for name, p in shares.items()}
    assert len(shares) == 8 and {float(p.unique()) for p in start.values()} == {1.0 if norm == "dtn" else 0.0}
    optimiser = torch.optim.AdamW(dynavit.parameter_groups(new, weight_decay=0.05), lr=1e-3, eps=1e-20)
    nn.functional.cross_entropy(new(x), y).backward()
    slopes = {name: p.grad.clone() for name, p in shares.items()}
    assert all((slope != 0).all() for slope in slopes.values())
    optimiser.step()
    new(x)  # sets back what has left [0, 1]
    for name, share in shares.items():
        torch.testing.assert_close(share.detach(), (start[name] - 1e-3 * slopes[name].sign()).clamp(0, 1), rtol=0, atol=1e-8)
    assert any((share != start[name]).any() for name, share in shares.items())
    if norm == "dtn":
        new.zero_grad()
        nn.functional.cross_entropy(new(x), y).backward()
        assert all(each.position.grad[(each.mean_share < 1) | (each.var_share < 1)].all() for each in norms_of(new))


def test_identity_needs_no_call_to_learn():
    new = swap_norms(small_vit(), "dtn", start="identity")
    with pytest.warns(DeprecationWarning, match="learn from the first step"):
        assert unfreeze_norms(new) == 0
    new.blocks[1].norm1.var_share.requires_grad_(False)
    with pytest.warns(DeprecationWarning, match="learn"):
        assert unfreeze_norms(new) == 1
    assert new.blocks[1].norm1.var_share.requires_grad and (new.blocks[1].norm1.var_share == 1).all()


def test_identity_is_rebuilt_folded_and_reported():
    """The plan says that shares are linear, so a state dict finds its names; frozen and logged shares are the clamped ones."""
    new = swap_norms(small_vit(), "dtn", start="identity")
    with torch.no_grad():
        for norm in norms_of(new):
            norm.mean_share.copy_(torch.tensor([1.01, 0.25, -0.01]))
    again = apply_plan(small_vit(), new.swap_plan)
    again.load_state_dict(new.state_dict())
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(again.eval()(x), new.eval()(x), rtol=0, atol=0)
    assert [again.blocks[0].norm1.scalars()[f"lambda_mean.{head}"] for head in range(3)] == [1.0, 0.25, 0.0]
    assert again.blocks[0].norm1.mean_share[0].item() > 1  # evaluation changes nothing
    frozen = FrozenTokenNorm(again.blocks[0].norm1, (4, 4), prefix=1)
    frozen.compute_constants(again.blocks[0].norm1, None)
    assert frozen.mean_share[::64].tolist() == [1.0, 0.25, 0.0]


def test_near_is_the_default_and_reports_its_deviation():
    model = trained(small_vit())
    new = swap_norms(model, "dtn")
    assert new.swap_plan.start == "near"
    assert 1e-6 < new.swap_plan.deviation < 0.1
    norm = new.blocks[0].norm1
    torch.testing.assert_close(norm.var_logit.sigmoid(), torch.full((3,), 0.98))
    torch.testing.assert_close(norm.position, DynamicTokenNorm(192, heads=3).position)
    assert all(parameter.requires_grad for parameter in norm.parameters())


@pytest.mark.parametrize("norm", ["dtn", "sn"])
def test_after_twenty_steps_from_near_the_mixture_has_moved(norm):
    torch.manual_seed(0)
    model = swap_norms(small_vit(global_pool="avg"), norm, start="near").train()
    before = copy.deepcopy(model.state_dict())
    x, y = torch.randn(8, 3, 64, 64), torch.arange(8) % 7
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(20):
        loss = nn.functional.cross_entropy(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    learned = [name for name in before if name.endswith(("mean_logit", "var_logit", "position"))]
    assert len(learned) == (12 if norm == "dtn" else 8)
    for name in learned:
        assert (model.state_dict()[name] - before[name]).abs().max() > 1e-3, name


def test_fresh_is_the_layers_own_beginning():
    new = swap_norms(trained(small_vit()), "dtn", start="fresh")
    assert torch.equal(new.blocks[0].norm1.mean_logit, torch.zeros(3))
    assert new.swap_plan.deviation is None


@pytest.mark.parametrize("norm", dynavit.list_norms())
def test_every_norm_in_a_model(norm):
    model = trained(small_vit()).train()
    new = swap_norms(model, norm, start="fresh")
    assert len(norms_of(new)) == (5 if folds(norm) else 4)  # one that folds takes the place of the last norm too
    new(torch.randn(2, 3, 64, 64)).square().sum().backward()
    missing = [name for name, parameter in new.named_parameters() if parameter.grad is None]
    assert missing == []


@pytest.mark.parametrize(
    ("norm", "start"), [("ln", "identity"), ("dtn", "near"), ("sn", "near"), ("rms", "fresh"), ("bn", "fresh")]
)
def test_the_default_start(norm, start):
    assert swap_norms(small_vit(), norm).swap_plan.start == start


def test_ln_is_identical():
    model = trained(small_vit())
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(swap_norms(model, "ln", start="identity")(x), model(x))


def test_starts_that_do_not_exist_name_what_fits():
    for norm in ("bn", "rms", "dyt", "dtn_released"):
        for start in ("identity", "near"):
            with pytest.raises(ValueError, match=f"start='{start}'.*fresh"):
                swap_norms(small_vit(), norm, start=start)
    with pytest.raises(ValueError, match="start= is one of 'identity', 'near', 'fresh'"):
        swap_norms(small_vit(), "dtn", start="close")
    model = small_vit()
    model.blocks[0].norm1 = nn.RMSNorm(192)
    with pytest.raises(ValueError, match="norms to replace are ln and rms"):
        swap_norms(model, "dtn", start="near")
    assert swap_norms(model, "dtn").swap_plan.start == "fresh"


def test_one_module_in_two_places_stays_one():
    model = small_vit()
    model.blocks[1].norm1 = model.blocks[0].norm1
    new = swap_norms(model, "dtn")
    assert new.blocks[1].norm1 is new.blocks[0].norm1
    assert isinstance(new.blocks[0].norm1, DTN)
    new(torch.randn(1, 3, 64, 64))


def test_swapping_again():
    once = swap_norms(small_vit(), "dtn", where="blocks.0.*", start="fresh")
    twice = swap_norms(once, "dtn", where="blocks.1.*", start="fresh")
    assert len(norms_of(twice)) == 4
    x = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(twice(x), swap_norms(small_vit(), "dtn", start="fresh")(x))
    back = swap_norms(once, "ln", where="blocks.0.*", start="fresh")
    torch.testing.assert_close(back(x), small_vit()(x))


def told(model, grids):
    """The oracle: each norm is told its grid."""
    model = copy.deepcopy(model)
    for norm in norms_of(model):
        norm._forward_pre_hooks.clear()
        norm.forward = lambda x, norm=norm: DTN.forward(norm, x, grid=grids[x.shape[1] - norm.num_prefix_tokens])
    return model


def scattered(model):
    for norm in norms_of(model):
        nn.init.normal_(norm.position, std=0.3)
    return model


def test_pyramids_on_images_that_are_not_square():
    model = scattered(swap_norms(timm_model("pvt_v2_b0"), "dtn", start="fresh", input_size=64)).double()
    for rows, cols in ((64, 96), (96, 64), (80, 72)):
        x = torch.randn(1, 3, rows, cols, dtype=torch.float64)
        sizes, grids = (rows, cols), {}
        for stride in (4, 2, 2, 2):
            sizes = tuple(-(-size // stride) for size in sizes)
            grids[sizes[0] * sizes[1]] = sizes
        torch.testing.assert_close(model(x), told(model, grids)(x), rtol=1e-10, atol=1e-10)


def test_timm_vit_that_takes_any_size_with_checkpointing():
    model = timm_model("vit_tiny_patch16_224", img_size=64, depth=3, dynamic_img_size=True, num_classes=5)
    model = scattered(swap_norms(model, "dtn", start="fresh")).double().train()
    plain = copy.deepcopy(model)
    model.set_grad_checkpointing()
    images = [torch.randn(1, 3, 64, 144, dtype=torch.float64), torch.randn(1, 3, 144, 64, dtype=torch.float64)]
    sum(model(x).square().sum() for x in images).backward()
    for x, grid in zip(images, ((4, 9), (9, 4)), strict=True):
        torch.testing.assert_close(model(x), told(plain, {36: grid})(x), rtol=1e-10, atol=1e-10)
        plain(x).square().sum().backward()
    for mine, its in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, its.grad, rtol=1e-8, atol=1e-10)


def test_channels_first():
    model = trained(timm_model("test_convnext"))
    new = swap_norms(model, "dtn", where="stages.*.downsample.0", start="identity", input_size=64)
    assert {row.layout for row in new.swap_plan.swapped()} == {"channels_first"}
    x = torch.randn(2, 3, 64, 96)
    torch.testing.assert_close(new(x), model(x), rtol=1e-4, atol=1e-5)
    fresh = scattered(swap_norms(model, "dtn", where="stages.*.downsample.0", start="fresh", input_size=64))
    norm = norms_of(fresh)[0]
    y = torch.randn(1, norm.dim, 3, 5)
    torch.testing.assert_close(norm(y), DTN.forward(norm, y.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


@pytest.mark.parametrize("batch_first", [True, False])
def test_transformer_encoder_never_takes_its_fused_path(batch_first):
    """At evaluation torch would hand the norms' weights to an operator that computes LayerNorm."""
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=batch_first)
    new = swap_norms(model, "dtn", start="fresh")
    x = torch.randn(3, 7, 16) if batch_first else torch.randn(7, 3, 16)
    trained_mode = new.train()(x)
    with torch.no_grad():
        evaluated = new.eval()(x)
    torch.testing.assert_close(evaluated, trained_mode)
    assert (evaluated - model.eval()(x)).abs().max() > 0.1
    identity = swap_norms(model, "dtn", start="identity")
    torch.testing.assert_close(identity(x), model(x), rtol=1e-4, atol=1e-5)
    if not batch_first:  # tokens are the first axis: the other one must not be mixed
        torch.testing.assert_close(new(x)[:, :1], new(x[:, :1]), rtol=1e-4, atol=1e-5)


def test_levit_when_asked():
    model = timm_model("levit_128s")
    new = swap_norms(model, "dtn", where={"site": "linear_bn"}, input_size=224)
    assert new.swap_plan.counts() == {"swap": 20, "keep": 0, "refuse": 0}
    assert new.swap_plan.start == "fresh"
    assert {row.grid for row in new.swap_plan.rows} == {(14, 14), (7, 7), (4, 4)}
    assert (
        not set(new.state_dict())
        - set(model.state_dict())
        - {f"{row.path}.{name}" for row in new.swap_plan.rows for name in ("mean_logit", "var_logit", "position")}
    )
    only_queries = plan_swap(model, "dtn", where={"site": "linear_bn", "pattern": "*.qkv.bn"})
    assert only_queries.counts()["swap"] == 9
    with pytest.raises(ValueError, match="norms to replace are bn"):
        swap_norms(model, "dtn", where={"site": "linear_bn"}, start="near")
    rebuilt = apply_plan(timm_model("levit_128s"), new.swap_plan)
    rebuilt.load_state_dict(new.state_dict())
    x = torch.randn(1, 3, 224, 224)
    torch.testing.assert_close(rebuilt.eval()(x), new.eval()(x))


def test_patches_without_a_convolution():
    model = scattered(swap_norms(LinearPatchViT(), "dtn", start="fresh")).double()
    for rows, cols in ((2, 5), (5, 2), (4, 4)):
        x = torch.randn(2, 3, 8 * rows, 8 * cols, dtype=torch.float64)
        torch.testing.assert_close(model(x), told(model, {rows * cols: (rows, cols)})(x), rtol=1e-10, atol=1e-10)


def test_token_wise_norms_in_a_language_model():
    model = swap_norms(Language(), "rms", start="fresh")
    assert len(norms_of(model)) == 4
    model(torch.randint(0, 50, (2, 9)))


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # dynamo looks at outputs of hooked modules
def test_compiled():
    """In one graph, grid included; a new resolution is a new graph."""
    model = scattered(swap_norms(small_vit(), "dtn", start="fresh"))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    model.blocks = torch.compile(model.blocks, backend="eager", fullgraph=True)
    torch.testing.assert_close(model(x), compiled(x), rtol=1e-4, atol=1e-5)  # parts compiled by themselves


def test_exported():
    model = scattered(swap_norms(small_vit(), "dtn", start="fresh")).eval()
    x = torch.randn(2, 3, 64, 64)
    program = torch.export.export(model, (x,), strict=False)
    torch.testing.assert_close(program.module()(x), model(x), rtol=1e-4, atol=1e-5)


def test_no_optimiser_decays_a_swapped_norm():
    from timm.optim import create_optimizer_v2

    model = swap_norms(small_vit(), "dtn", start="near")
    again = copy.deepcopy(swap_norms(model, "dtn", where="norm", input_size=64))
    norms = {f"{path}.{name}" for path, norm in again.named_modules() if isinstance(norm, Norm) for name in norm.state_dict()}
    assert again.no_weight_decay() == model.no_weight_decay() | norms >= {"pos_embed"} and len(norms) == 25
    assert swap_norms(LinearPatchViT(), "dtn", input_size=32).no_weight_decay() >= {"layers.0.0.norm.position"}
    names = {parameter: name for name, parameter in again.named_parameters()}
    by_timm = create_optimizer_v2(again, "adamw", lr=1e-3, weight_decay=0.05)
    by_us = torch.optim.AdamW(dynavit.parameter_groups(again, 0.05), lr=1e-3)
    for optimiser in (by_timm, by_us):
        decayed = {names[p] for group in optimiser.param_groups if group["weight_decay"] for p in group["params"]}
        assert decayed and not decayed & again.no_weight_decay()


def test_parameter_groups_bring_their_learning_rates():
    model = swap_norms(small_vit(), "dtn")
    groups = dynavit.parameter_groups(model, 0.1, layer_decay=0.5, backbone_lr=0.1, lr=1e-2)
    assert {id(p) for group in groups for p in group["params"]} == {id(p) for p in model.parameters()}
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert rates[id(model.head.weight)] == 1e-2
    assert rates[id(model.blocks[1].norm1.position)] == pytest.approx(2 * rates[id(model.blocks[0].norm1.position)])
    assert all("lr" not in group for group in dynavit.parameter_groups(model))


def test_per_sample_gradients_of_a_swapped_model():
    """torch.func wraps tensors, which then have no storage to be remembered by."""
    model = swap_norms(small_vit(global_pool="avg"), "dtn", norm_options={"backend": "torch"})
    x, y = torch.randn(2, 3, 64, 64), torch.tensor([1, 5])

    def loss(parameters):
        return nn.functional.cross_entropy(torch.func.functional_call(model, parameters, (x,)), y)

    gradients = torch.func.grad(loss)({name: p.detach() for name, p in model.named_parameters()})
    nn.functional.cross_entropy(model(x), y).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6)
