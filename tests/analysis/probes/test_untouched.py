"""Observing changes nothing: outputs, weights, modes, random numbers, hooks; with wrappers, compiled, and when it fails."""

import copy

import pytest
import torch
from torch import nn

import dynavit
from analysis.probes.tiny_models import from_timm, images, own, swin, vit
from dynavit.analysis.probes import attention_paths, norm_sites, observe


def nothing(call):
    torch.rand(3)  # a callback may draw random numbers


def hooks(model):
    return [
        len(getattr(module, name))
        for module in model.modules()
        for name in ("_forward_hooks", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs")
    ]


def outputs(model, x):
    with torch.no_grad():
        y = model(x)
    return y if isinstance(y, tuple) else (y,)


def same(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def levit():
    small = {"img_size": 32, "embed_dim": (32,), "key_dim": 8, "depth": (1,), "num_heads": (2,)}
    return from_timm("levit", "Levit", **small)


MODELS = {
    "vit": (lambda: own("test_vit", "dtn"), (2, 3, 32, 32)),
    "un": (lambda: own("test_vit", "un"), (2, 3, 32, 32)),  # running statistics
    "pvt": (lambda: own("test_pvt", "dtn"), (2, 3, 32, 32)),
    "cascade": (lambda: own("dvt_vit_digits", "dtn", in_chans=1), (2, 1, 8, 8)),
    "timm vit": (vit, (2, 3, 32, 32)),
    "swapped swin": (lambda: dynavit.swap_norms(swin((40, 56)), "dtn"), (2, 3, 40, 56)),
}


@pytest.mark.parametrize("name", MODELS)
def test_bit_identical_before_during_and_after(name):
    make, shape = MODELS[name]
    model, x = make(), images(*shape)
    before = outputs(model, x)
    state, put = copy.deepcopy(model.state_dict()), hooks(model)
    model.train()
    model.get_submodule(norm_sites(model)[1].block).eval()  # a frozen block
    modes, random = [module.training for module in model.modules()], torch.get_rng_state()

    during = observe(model, x, on_norm=nothing, on_attention=nothing)

    assert same(during if isinstance(during, tuple) else (during,), before)
    assert [module.training for module in model.modules()] == modes and True in modes and False in modes
    assert torch.equal(torch.get_rng_state(), random) and hooks(model) == put
    after = model.state_dict()
    assert list(after) == list(state) and all(torch.equal(after[key], value) for key, value in state.items())
    assert same(outputs(model.eval(), x), before)
    assert torch.is_grad_enabled()


def test_a_model_that_keeps_things_for_evaluation_is_seen_as_it_is():
    """LeViT keeps its biases between passes in evaluation mode, and forgets them when it is told to train."""
    model, x, seen = levit(), images(2, 3, 32, 32), []
    model.train()
    observe(model, x, on_attention=seen.append)
    assert not any(getattr(module, "attention_bias_cache", None) for module in model.modules())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3)
    observe(model, x, on_attention=seen.append)
    fresh = levit()
    fresh.load_state_dict(model.state_dict())
    observe(fresh, x, on_attention=seen.append)
    assert torch.equal(seen[1].weights, seen[2].weights) and not torch.equal(seen[0].weights, seen[1].weights)


class Stop(Exception):
    pass


@pytest.mark.parametrize("which", ["on_norm", "on_attention", "model"])
def test_everything_is_removed_when_the_pass_fails(which):
    def stop(*_):
        raise Stop

    model, x = own("test_vit", "dtn").train(), images(2, 3, 32, 32)
    expected = outputs(model, x)
    if which == "model":
        model.blocks[1].mlp.register_forward_pre_hook(stop)
        which = "on_norm"
        stop = nothing
    random, put = torch.get_rng_state(), hooks(model)
    with pytest.raises(Stop):
        observe(model, x, **{which: stop})
    assert hooks(model) == put and torch.equal(torch.get_rng_state(), random)
    assert all(module.training for module in model.modules()) and torch.is_grad_enabled()
    assert not torch.overrides._get_current_function_mode_stack()
    model.blocks[1].mlp._forward_pre_hooks.clear()
    assert same(outputs(model, x), expected)


def paths_seen(model, x):
    norms, weights = [], []
    observe(model, x, on_norm=norms.append, on_attention=weights.append)
    return [call.path for call in norms], [call.path for call in weights]


@pytest.mark.parametrize(
    "way",
    [
        "wrapped",
        pytest.param("in place", marks=pytest.mark.slow),
        "forward",
        "a block",
        pytest.param("an attention", marks=pytest.mark.slow),
    ],
)
def test_compiled_models_are_looked_at_uncompiled(way):
    """A backend that only counts: what was compiled before is used again after."""
    model, x = own("test_vit", depth=2), images(2, 3, 32, 32)
    expected_paths, expected = paths_seen(model, x), outputs(model, x)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = model
    if way == "wrapped":
        compiled = torch.compile(model, backend=backend)
    elif way == "in place":
        model.compile(backend=backend)
    elif way == "forward":  # as the training loop does it
        model.forward = torch.compile(model.forward, backend=backend)
    elif way == "a block":
        model.blocks[1] = torch.compile(model.blocks[1], backend=backend)
    else:
        model.blocks[1].attn = torch.compile(model.blocks[1].attn, backend=backend)
    assert same(outputs(compiled, x), expected)
    count = len(graphs)
    assert count
    assert paths_seen(compiled, x) == expected_paths
    assert ([site.path for site in norm_sites(compiled)], attention_paths(compiled)) == expected_paths
    assert len(graphs) == count
    assert same(outputs(compiled, x), expected) and len(graphs) == count


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
def test_compiled_by_the_real_compiler():
    model, x = own("test_vit", "dtn"), images(2, 3, 32, 32)
    expected_paths = paths_seen(model, x)
    torch._dynamo.reset()
    compiled = torch.compile(model)
    expected = outputs(compiled, x)
    assert paths_seen(compiled, x) == expected_paths
    with torch.compiler.set_stance("fail_on_recompile"):
        assert same(outputs(compiled, x), expected)


def test_under_data_parallel_wrappers(tmp_path):
    model, x = own("test_vit", "dtn"), images(2, 3, 32, 32)
    expected_paths, expected = paths_seen(model, x), outputs(model, x)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model).train()
        assert paths_seen(wrapped, x) == expected_paths
        assert wrapped.training and model.training and not any(hooks(wrapped))
        assert same(outputs(wrapped.eval(), x), expected)
    finally:
        torch.distributed.destroy_process_group()
    assert paths_seen(nn.DataParallel(model), x) == expected_paths
