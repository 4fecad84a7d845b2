"""What every model of ours promises; the registry writes the list.

Of each class one small model is built and run, in all its forms; of every name the shapes are looked at.
"""

import copy
import inspect
import math
import warnings
from typing import get_type_hints

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.models._manipulate import group_parameters
from torch import nn

import dynavit
from dynavit.models import registry
from dynavit.norms import LayerNorm
from dynavit.norms.seat import misfit

OWN = [  # detectors promise other things, see detection/test_detectors.py
    name for name in dynavit.list_models() if registry.home_of(name) == "dynavit" and registry.task_of(name) != "detection"
]
FORMS = {  # of each class its smallest model, and the options that change what it is made of
    "VisionTransformer": ("test_vit", [{}, {"class_token": "start"}, {"class_token": None, "stem": [(3, 2, 1), (5, 4, 2)]}]),
    "PyramidVisionTransformer": ("test_pvt", [{}]),
    "T2TVisionTransformer": ("test_t2t", [{}, {"tokens": "transformer"}]),
    "SequenceTransformer": (
        "test_sequence",
        [
            {},
            {"pool": "mean"},
            {"attention": "bigbird", "attention_options": {"block": 6, "random": 1}},
            {"attention": "reformer", "attention_options": {"chunk": 6, "rounds": 2}},
        ],
    ),
    "Cascade": ("dvt_vit_digits", [{}, {"tokens": {"splits": (((3, 2, 1), (3, 2, 1)), ((3, 1, 1), (3, 2, 1)))}}]),
}
SMALL = [name for name, _ in FORMS.values()]
TRUNKS = ["test_vit", "test_pvt", "test_t2t"]  # one classifier of images: with feature maps, for images of several sizes
ALL_FORMS = [pytest.param(name, form, id=f"{name}{at}") for name, forms in FORMS.values() for at, form in enumerate(forms)]

of_every_name = pytest.mark.parametrize("name", OWN)
of_every_class = pytest.mark.parametrize("name", SMALL)
of_trunks = pytest.mark.parametrize("name", TRUNKS)
of_every_form = pytest.mark.parametrize(("name", "form"), ALL_FORMS)
# The first form with every norm, the others with one norm of each kind. What a model does for a norm is the same for all of a
# kind, and norms/test_contract.py holds each norm alone: by default two classes are run with all of them.
KINDS = ("ln", "dtn", "dtn_released", "bn", "in")
WITH_ALL = ("test_vit", "test_sequence")
with_any_norm = pytest.mark.parametrize(
    ("name", "form", "norm"),
    [
        pytest.param(
            name,
            form,
            norm,
            id=f"{name}{at}-{norm}",
            marks=[] if norm in KINDS or name in WITH_ALL else [pytest.mark.slow],
        )
        for name, forms in FORMS.values()
        for at, form in enumerate(forms)
        for norm in (KINDS if at else dynavit.list_norms())
    ],
)


def build(name, norm=None, *, seed=0, **options):
    torch.manual_seed(seed)
    return dynavit.create_model(name, norm, **options)


def meta(name, norm=None, **options):
    with torch.device("meta"):
        return dynavit.create_model(name, norm, **options)


def randomised(model):
    """Every parameter away from its start, so that a part that is left out shows."""
    noise = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_((0.1 * torch.randn(parameter.shape, generator=noise)).to(parameter))
    return model


def inputs(model, batch=3, size=None, seed=1):
    generator = torch.Generator().manual_seed(seed)
    if hasattr(model, "vocab_size"):
        return torch.randint(model.vocab_size, (batch, size or 20), generator=generator)
    channels, *own = model.default_cfg["input_size"]
    like = next(model.parameters())
    return torch.randn(batch, channels, *(size or own), generator=generator, dtype=torch.float64).to(like.dtype)


def outputs(model, x):
    """Logits as a list: of every exit, if there are several."""
    found = model(x)
    return list(found) if isinstance(found, tuple) else [found]


def gradients(model, *batches):
    model.zero_grad()
    torch.manual_seed(3)  # of dropped paths
    sum(logits.square().sum() for x in batches for logits in outputs(model, x)).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def heads(model):
    found = model.get_classifier()
    return found if isinstance(found, tuple) else (found,)


# --- every name


def test_every_class_is_run():
    assert {get_type_hints(inspect.unwrap(registry.MODELS[name]))["return"].__name__ for name in OWN} == set(FORMS)


@of_every_name
def test_timm_has_it_unless_timm_has_the_name(name):
    assert timm.is_model(name)
    if name == "test_vit":
        assert timm.models.model_entrypoint(name).__module__.startswith("timm.")  # we do not take timm's own away
    else:
        assert timm.models.model_entrypoint(name) is registry.MODELS[name]


@of_every_name
def test_it_is_described_starts_with_layer_norm_and_shows_timm_its_ends(name):
    assert registry.describe_model(name)
    model = meta(name, num_classes=7)
    # Norms between the convolutions of a stem are the stem's: the model's norm does not touch them.
    norms = {path: type(module) for path, module in model.named_modules() if isinstance(module, dynavit.Norm)}
    assert {kind for path, kind in norms.items() if ".tokenizer.norms." not in path} == {LayerNorm}
    assert model.num_classes == 7
    assert all(head.out_features == 7 and head.in_features == model.num_features for head in heads(model))
    if hasattr(model, "vocab_size"):
        return
    config = model.default_cfg
    assert config is model.pretrained_cfg and config["architecture"] == name and config["num_classes"] == 7
    assert isinstance(model.get_submodule(config["first_conv"]), nn.Conv2d | nn.Linear)
    paths = config["classifier"]
    assert [model.get_submodule(path) for path in ([paths] if isinstance(paths, str) else paths)] == list(heads(model))


# --- every class, in every form


@of_every_form
def test_tokens_positions_and_norms_are_not_decayed(name, form):
    model = meta(name, "dtn", **form)
    parameters, kept = dict(model.named_parameters()), model.no_weight_decay()
    assert kept <= set(parameters)
    assert {one for one in parameters if "cls_token" in one or "pos_embed" in one} <= kept
    norms = [path for path, module in model.named_modules() if isinstance(module, dynavit.Norm)]
    assert {one for one in parameters if one.rpartition(".")[0] in norms} <= kept
    layers = (nn.Linear, nn.Conv2d, nn.Embedding)
    decayed = {f"{path}.weight" for path, module in model.named_modules() if isinstance(module, layers)}
    assert decayed and not decayed & kept


@pytest.mark.parametrize(("name", "form"), [form for form in ALL_FORMS if "sequence" not in form.id])  # they start as in JAX
def test_linears_tokens_and_positions_start_small(name, form):
    model = build(name, **form)
    linears = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Embedding)]
    assert torch.cat([linear.weight.flatten() for linear in linears]).std().item() == pytest.approx(0.02, rel=0.05)
    assert not any(linear.bias.any() for linear in linears if getattr(linear, "bias", None) is not None)
    bare = [value for one, value in model.named_parameters() if "cls_token" in one or "pos_embed" in one]
    assert torch.cat([value.flatten() for value in bare]).std().item() == pytest.approx(0.02, rel=0.4)  # may be 32 numbers


@pytest.mark.parametrize(("name", "form"), [form for form in ALL_FORMS if "dvt" not in form.id])
@pytest.mark.parametrize("coarse", [False, True])
def test_layers_in_order_of_depth_hold_every_parameter_once(name, form, coarse):
    model = meta(name, "dtn", **form)
    groups = group_parameters(model, model.group_matcher(coarse))
    assert sorted(one for group in groups.values() for one in group) == sorted(one for one, _ in model.named_parameters())
    depth = {one: at for at in groups for one in groups[at]}
    in_order = [depth[one] for one in depth if ".attn.proj.weight" in one and "tokens_to_token" not in one]
    assert in_order == sorted(in_order)
    first = next(one for one, _ in model.named_parameters() if "embed" in one or "tokens_to_token" in one)
    assert depth[first] == 0 and depth["head.weight"] == max(groups) and depth["norm.weight"] >= max(in_order)


@with_any_norm
def test_any_norm_trains_keeps_its_own_start_and_survives_a_file(name, form, norm, tmp_path):
    if name == "test_sequence" and misfit(norm, 1):
        with pytest.raises(ValueError, match="made for images"):
            build(name, norm, **form)
        return
    model = build(name, norm, **form)
    sites = [module for module in model.modules() if type(module) is type(dynavit.create_norm(norm, 16, heads=4))]
    assert sites
    for site in sites:
        if norm == "dtn_released" and math.isqrt(site.heads) ** 2 != site.heads:
            continue  # heads beyond the square start at random
        shape = {"ndim": 1} if getattr(site, "ndim", 2) == 1 else {}
        bare = dynavit.create_norm(norm, site.dim, heads=site.heads, **shape).state_dict()
        assert all(torch.equal(value, bare[key]) for key, value in site.state_dict().items())

    x = inputs(randomised(model))
    for training in (True, False):
        model.train(training).zero_grad()
        logits = outputs(model, x)
        assert {tuple(one.shape) for one in logits} == {(3, 10)}
        sum(one.square().sum() for one in logits).backward()
        for parameter, value in model.named_parameters():
            assert value.grad is not None and value.grad.isfinite().all(), parameter

    save_file(model.state_dict(), tmp_path / "model.safetensors")
    twin = build(name, norm, seed=5, **form).eval()
    twin.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert all(torch.equal(*pair) for pair in zip(logits, outputs(twin, x), strict=True))


@of_every_form
def test_timm_builds_the_same_and_so_does_a_copy(name, form):
    if name == "test_vit":
        name, form = "vit_micro", {**form, "patch_size": 4}  # timm has a `test_vit` of its own
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = timm.create_model(name, norm="dtn", num_classes=3, **form).eval()
    twin = build(name, "dtn", num_classes=3, **form).eval()
    assert type(model) is type(twin)
    x = inputs(model)
    for other in (twin, copy.deepcopy(model)):
        assert all(torch.equal(*pair) for pair in zip(outputs(model, x), outputs(other, x), strict=True))


@of_every_form
def test_a_new_classifier_starts_like_the_first(name, form):
    model = build(name, "dtn", **form).double().eval()
    x = inputs(model)
    for head in heads(model):
        nn.init.ones_(head.weight)
    model.reset_classifier(1000)
    assert model.num_classes == 1000 and {one.shape for one in outputs(model, x)} == {(3, 1000)}
    for head in heads(model):
        assert head.weight.dtype == torch.float64 and head.weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert not head.bias.any()
    last = heads(model)[-1]
    seen = []
    last.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    model(x)
    model.reset_classifier(0)
    assert torch.equal(outputs(model, x)[-1], seen[0]) and seen[0].shape == (3, model.num_features)


@of_every_form
def test_half_precision_is_finite(name, form):
    model = build(name, "dtn", **form).bfloat16()
    for logits in outputs(model, inputs(model)):
        assert logits.dtype == torch.bfloat16 and logits.isfinite().all()


@of_every_class
def test_a_misspelt_option_gets_the_nearest(name):
    with pytest.raises(ValueError, match=f"unknown option of model {name!r} 'norm_option'. Did you mean 'norm_options'"):
        build(name, norm_option={})
    with pytest.raises(ValueError, match="unknown norm 'dtm'. Did you mean"):
        build(name, "dtm")


@pytest.mark.parametrize(
    ("name", "sizes", "options"),
    [
        ("test_vit", ((32, 32), (32, 72)), {}),
        ("test_vit", ((32, 32), (32, 72)), {"class_token": "start"}),
        ("test_pvt", ((32, 32), (16, 32)), {}),
        ("test_t2t", ((32, 32), (24, 40)), {"token_drop_rate": 0.1}),
        ("test_sequence", (20, 7), {"drop_rate": 0.2}),
    ],
)
@pytest.mark.parametrize("norm", ["ln", "dtn", "in"])
def test_checkpointing_changes_no_gradient(name, sizes, options, norm):
    """With two grids in flight, and dropped paths."""
    model = randomised(build(name, norm, drop_path_rate=0.2, **options).double()).train()
    batches = [inputs(model, size=size) for size in sizes]
    plain = gradients(model, *batches)
    model.set_grad_checkpointing()
    recomputed = gradients(model, *batches)
    for parameter, grad in plain.items():
        torch.testing.assert_close(recomputed[parameter], grad, rtol=1e-12, atol=1e-12, msg=parameter)


# --- classifiers of images


@pytest.mark.parametrize("name", [*TRUNKS, "dvt_vit_digits"])
def test_timm_resolves_the_data_configuration(name):
    grey = timm.data.resolve_model_data_config(meta(name, in_chans=1))
    assert grey["input_size"][0] == 1 and grey["mean"] == (0.5,)
    size = (64, 32)
    colour = timm.data.resolve_model_data_config(meta(name, img_size=size))
    assert colour["input_size"] == (3, *size) and colour["mean"] == timm.data.IMAGENET_DEFAULT_MEAN


@of_trunks
def test_intermediate_maps(name):
    model = randomised(build(name, "dtn")).eval()
    x = inputs(model, size=(32, 64))
    final, maps = model.forward_intermediates(x)
    assert torch.equal(final, model.forward_features(x))
    assert len(maps) == len(model.feature_info)
    for found, info in zip(maps, model.feature_info, strict=True):
        assert found.shape == (3, info["num_chs"], 32 // info["reduction"], 64 // info["reduction"])
    (second,) = model.forward_intermediates(x, indices=[1], intermediates_only=True, stop_early=True)
    assert torch.equal(second, maps[1])
    (last,) = model.forward_intermediates(x, indices=1, norm=True, intermediates_only=True)
    assert torch.equal(last.flatten(2).mT, final[:, model.num_prefix_tokens :])


@of_trunks
def test_features_only_leaves_out_what_is_not_needed(name):
    model = randomised(build(name, "dtn", features_only=True)).eval()
    x = torch.randn(2, 3, 32, 64, generator=torch.Generator().manual_seed(1))
    maps = model(x)
    assert [found.shape[1] for found in maps] == model.feature_info.channels()
    assert [64 // found.shape[3] for found in maps] == model.feature_info.reduction()
    pruned = build(name, "dtn", features_only=True, out_indices=(0,))
    pruned.load_state_dict(model.state_dict(), strict=False)
    (first,) = pruned.eval()(x)
    assert torch.equal(first, maps[0])
    first.sum().backward()
    assert all(parameter.grad is not None for parameter in pruned.parameters())  # nothing unused is left, DDP needs that
    assert len(list(pruned.parameters())) < len(list(model.parameters()))


@pytest.mark.parametrize("name", ["test_sequence", "dvt_vit_digits"])
def test_others_have_no_feature_maps(name):
    with pytest.raises(ValueError, match=f"{name}: it has no feature maps"):
        build(name, features_only=True)


@of_trunks
def test_poolings(name):
    model = randomised(build(name)).double().eval()
    x = inputs(model)
    features = model.forward_features(x)
    assert torch.equal(model.forward_head(features, pre_logits=True), features[:, 0])
    model.reset_classifier(3, "avg")
    torch.testing.assert_close(model(x), model.head(features[:, 1:].mean(1)), rtol=1e-12, atol=1e-12)
    model.reset_classifier(0, "")
    assert torch.equal(model(x), features)
    with pytest.raises(ValueError, match="unknown pooling 'tokens'. Did you mean 'token'"):
        model.reset_classifier(3, "tokens")


@of_trunks
def test_dropout_stands_before_the_head(name):
    model = build(name, drop_rate=0.5)
    features = torch.ones(1, 17, model.num_features)
    assert set(model.train().forward_head(features, pre_logits=True).unique().tolist()) == {0.0, 2.0}
    assert torch.equal(model.eval().forward_head(features, pre_logits=True), features[:, 0])


@of_every_class
def test_dropped_paths_grow_with_depth(name):
    model = build(name, drop_path_rate=0.2)
    rates = [getattr(module, "drop_prob", 0.0) for path, module in model.named_modules() if path.endswith("drop_path")]
    whole = [rates] if name != "dvt_vit_digits" else [rates[:3], rates[3:]]
    for blocks in whole:
        assert blocks == pytest.approx([0.2 * i / (len(blocks) - 1) for i in range(len(blocks))])


@of_trunks
@pytest.mark.parametrize("norm", ["dtn", "dtn_released"])
def test_the_released_start_of_dtn(name, norm):
    """Released models initialise every linear last, among them the one that holds DTN's position."""

    def positions(**options):
        model = build(name, norm, **options)
        return torch.cat([value for one, value in model.named_parameters() if one.endswith("position")])

    released = positions(released_init=True)
    assert not torch.equal(released, positions())
    assert released.abs().max() < 0.1 and 0.012 < released.std() < 0.03
