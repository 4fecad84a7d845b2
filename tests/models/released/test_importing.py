"""Released checkpoints: the same logits and gradients as the released code, every number in its place, clear refusals."""

import json
import re

import numpy as np
import pytest
import torch

import dynavit
from dynavit.common.newer_state import newer_names
from dynavit.models.pvt import PyramidVisionTransformer
from dynavit.models.t2t import T2TVisionTransformer, sinusoid
from dynavit.models.vit import VisionTransformer
from dynavit.norms import create_norm
from models.released.states import CASES, NORMS, draw, dtn_value, shapes

DTN_GOLDENS = ("vit_norm_ti_star_dtn", "vit_norm_ti_star_layer", "vit_ti_star_layer", "pvt_tiny_norm_dtn_pool")
ALIKE = ("layer", "insnorm", "gnorm")


def numbered(names, dtype=torch.float32):
    """A state dict in which no two numbers are equal: each key its own range, so that a swap of any two shows."""
    state, start = {}, 1
    for name, shape in names.items():
        size = int(np.prod(shape))
        if name.endswith(("iters", "skip_counter", "num_batches_tracked")):
            state[name] = torch.full(shape, start, dtype=torch.int64)
        else:
            state[name] = torch.arange(start, start + size, dtype=dtype).reshape(shape)
        start += size
    return state


def golden_state(path, case):
    facts = json.loads((path / f"{case}.json").read_text())
    return facts, {name: dtn_value(name, shape) for name, (shape, _) in facts["state_dict"].items()}


def image(case):
    return torch.from_numpy(draw(f"input:{case}", (2, 3, 224, 224))).float()


def assert_close(got, want, tolerance):
    assert np.abs(got.detach().numpy() - want).max() <= tolerance * max(1, np.abs(want).max())


# --- the released code's own numbers


@pytest.mark.parametrize("case", DTN_GOLDENS)
def test_logits_of_the_dtn_release(shared_golden, case):
    facts, state = golden_state(shared_golden / "dtn", case)
    model = dynavit.import_released(state, arch=facts["function"], norm=facts["norm_type"])
    assert not model.training
    golden = np.load(shared_golden / "dtn" / f"{case}.npz")
    with torch.no_grad():
        assert_close(model(image(case)), golden["logits"], 1e-5)
        assert_close(model.double()(image(case).double()), golden["logits64"], 1e-12)


@pytest.mark.parametrize("case", ["vit_norm_ti_star_dtn", pytest.param("pvt_tiny_norm_dtn_pool", marks=pytest.mark.slow)])
def test_gradients_of_the_dtn_release(shared_golden, case):
    facts, state = golden_state(shared_golden / "dtn", case)
    model = dynavit.import_released(state, arch=facts["function"], norm=facts["norm_type"]).double().train()
    cotangent = torch.from_numpy(draw(f"cotangent:{case}", (2, 1000)))
    (model(image(case).double()) * cotangent).sum().backward()
    golden = np.load(shared_golden / "dtn" / f"{case}.npz")
    ours = model.import_report["renamed"]
    checked = 0
    stored = (golden[key] for key in ("grad_names", "grad_sum", "grad_sumsq", "grad_first"))
    for name, total, squares, first in zip(*stored, strict=True):
        if name.endswith("pos_proj.bias"):
            continue
        grad = model.get_parameter(ours.get(str(name), str(name))).grad
        if name.endswith("pos_proj.weight"):  # position = [w2, -w0, -w1]
            grad = torch.stack([-grad[:, 1], -grad[:, 2], grad[:, 0]], 1)
        grad = grad.numpy()
        if "attn.kv.bias" in name:  # keys' half: 0 in theory
            assert abs(grad.flat[0] - first) < 1e-9, name
        else:
            assert grad.flat[0] == pytest.approx(first, rel=1e-8, abs=1e-9), name
        scale = np.sqrt(squares * grad.size)
        assert abs(grad.sum() - total) <= 1e-10 * max(scale, 1), name
        assert np.square(grad).sum() == pytest.approx(squares, rel=1e-9, abs=1e-12), name
        checked += 1
    assert checked == len(list(model.parameters()))


@pytest.mark.parametrize("case", ["t2t_vit_7", pytest.param("t2t_vit_t_14", marks=pytest.mark.slow), "un_t2t_vit_14"])
def test_logits_of_t2t_vit(shared_golden, case):
    state, golden = t2t_state(shared_golden / "t2t", case)
    model = dynavit.import_released(state)  # nothing else: the keys say it all
    assert model.import_report["arch"] == case.removeprefix("un_")
    assert model.import_report["norm"] == ("un" if case.startswith("un_") else "layer")
    assert_close(model(image(case)), golden["logits"], 1e-5)


def t2t_state(path, case):
    golden = np.load(path / f"{case}.npz")
    state = {}
    for name, (shape, _) in json.loads((path / f"{case}.shapes.json").read_text()).items():
        if f"fixed/{name}" in golden:
            value = golden[f"fixed/{name}"]
        elif name == "pos_embed":
            value = sinusoid(*shape[1:]).numpy()
        elif name.endswith("running_var"):
            value = 4 * (1 + 0.1 * np.abs(draw(name, shape)))
        elif name.endswith(("ema_gz", "buffer_x2", "buffer_gz", "iters", "skip_counter")):
            state[name] = torch.zeros(shape, dtype=torch.int64 if shape == [1] else torch.float32)
            continue
        else:
            value = (0.02 if ".kqv." in name else 0.05) * draw(name, shape)
            value += bool(re.search(r"(?:^|\.)norm\d?\.weight$", name))
        state[name] = torch.from_numpy(np.asarray(value)).float()
    return state, golden


def test_made_up_state_dicts_have_the_released_keys(shared_golden):
    for case in DTN_GOLDENS:
        facts = json.loads((shared_golden / "dtn" / f"{case}.json").read_text())
        released = {name: tuple(shape) for name, (shape, _) in facts["state_dict"].items()}
        assert shapes(facts["function"], facts["norm_type"]) == released
    for case in ("t2t_vit_7", "t2t_vit_t_14", "un_t2t_vit_14"):
        released = json.loads((shared_golden / "t2t" / f"{case}.shapes.json").read_text())
        assert shapes(case.removeprefix("un_"), "un" if case.startswith("un_") else "layer") == {
            name: tuple(shape) for name, (shape, _) in released.items()
        }


# --- every model with every norm

QUICK = ("vit_norm_ti_star", "vit_ti_star", "pvt_tiny_norm", "t2t_vit_7", "t2t_vit_t_14")


@pytest.mark.parametrize(
    ("arch", "norm"), [pytest.param(*case, marks=[] if case[0] in QUICK else [pytest.mark.slow]) for case in CASES]
)
def test_every_number_arrives(arch, norm):
    state = numbered(shapes(arch, norm, classes=7), torch.float64)
    model = dynavit.import_released(state, arch, norm)
    report = model.import_report
    assert (report["arch"], report["norm"]) == (arch, norm)
    assert model.num_classes == 7
    ours = model.state_dict()

    kept = {name for name in state if not name.endswith(("pos_proj.bias", "num_batches_tracked"))}
    assert set(report["dropped"]) == set(state) - kept
    names = {name: report["renamed"].get(name, name) for name in kept}
    counters = newer_names(model)  # ours alone
    assert sorted(names.values()) == sorted(ours.keys() - counters) and not any(ours[name] for name in counters)
    for theirs, name in names.items():
        value = state[theirs]
        if theirs.endswith("pos_proj.weight"):
            w0, w1, w2 = value.unbind(1)
            value = torch.stack([w2, -w0, -w1], 1)
        if theirs == "to_patch_embedding.1.weight":  # pixels as (row, column, channel)
            value = torch.einsum("cyxi->ciyx", value.reshape(-1, 16, 16, 3))
        assert torch.equal(ours[name], value.reshape(ours[name].shape)), theirs
        assert ours[name].dtype == value.dtype


@pytest.mark.parametrize("arch", ["vit_norm_ti_star", "vit_ti_star", "pvt_tiny_norm"])
@pytest.mark.parametrize("norm", NORMS)
def test_the_norms_are_the_released_ones_at_the_released_places(arch, norm):
    if (arch, norm) not in CASES:
        with pytest.raises(ValueError, match="(hold|not those of) .*norm.*dtn"):
            dynavit.import_released(meta_state(arch, norm), arch, norm)
        return
    model = dynavit.import_released({n: torch.zeros(s) for n, s in shapes(arch, norm, classes=2).items()}, arch, norm)
    kinds = {
        "layer": ("ln", {}),
        "dtn": ("dtn_released", {}),
        "dtn_var": ("dtn_released", {"only_var": True}),
        "dtn_pool": ("dtn_released", {}),
        "batch": ("bn", {}),
        "power": ("power", {"backward": "dtn", "warmup": 3000}),
        "insnorm": ("in", {"unbiased": True}),
        "gnorm": ("gn", {}),
        "scale": ("scale", {"per_channel": True}),
    }
    if arch == "vit_norm_ti_star":
        places = {f"blocks.{i}.norm{n}": (192, 4, 1) for i in range(10) for n in (1, 2)}
    elif arch == "vit_ti_star":
        places = {f"blocks.{i}.norm1": (192, 4, 1) for i in range(12)}
    else:
        stages = ((1, 64, 4, 4), (2, 128, 4, 2), (3, 320, 5, 1))
        places = {f"block{s}.{i}.norm{n}": (c, h, pool) for s, c, h, pool in stages for i in (0, 1) for n in (1, 2)}
    name, options = kinds[norm]
    for path, module in model.named_modules():
        if not isinstance(module, dynavit.Norm):
            continue
        if path in places:
            dim, heads, pool = places[path]
            extra = {"pool": pool} if name == "dtn_released" else {"eps": 1e-6} if (name, arch[:3]) == ("ln", "pvt") else {}
            wanted = create_norm(name, dim, heads=heads, **options, **extra)
        else:
            in_block = arch.startswith("pvt") and (path == "norm" or re.fullmatch(r"block4\.\d\.norm[12]", path))
            wanted = create_norm("ln", module.dim, heads=module.heads, eps=1e-6 if in_block else 1e-5)
        assert repr(module) == repr(wanted), path


def test_power_norm_counts_on():
    state = numbered(shapes("vit_norm_ti_star", "power"))
    model = dynavit.import_released(state)
    assert model.blocks[0].norm1.iters.shape == ()
    assert model.blocks[0].norm1.iters == state["blocks.0.norm1.iters"].item()
    assert model.import_report["norm"] == "power"


def test_unified_norm_is_everywhere_and_goes_on_as_released():
    names = shapes("t2t_vit_7", "un", classes=2) | {"blocks.1.norm2.buffer_gz": (3, 256), "norm.buffer_x2": (5, 256)}
    model = dynavit.import_released(numbered(names))
    assert model.import_report["assumed"] == {"warmup": 4000, "filtration": True}
    norms = {path: module for path, module in model.named_modules() if isinstance(module, dynavit.Norm)}
    assert len(norms) == 4 + 2 * 7 + 1
    for path, module in norms.items():
        window = {"blocks.1.norm2": (4, 3), "norm": (5, 4)}.get(path, (4, 4))
        options = {"window": window, "official": True, "filtration": True}
        assert repr(module) == repr(create_norm("un", module.dim, heads=module.heads, **options)), path
        assert not module.pending.any() and not module.pending_gz.any()  # no part of a checkpoint


# --- what keys and shapes decide, and what they do not


@pytest.mark.parametrize("norm", ["dtn", "dtn_var", "batch", "power", "scale"])
@pytest.mark.parametrize("blocks", [0, 4, 10, 11])
def test_the_number_of_blocks_is_read_from_the_keys(norm, blocks):
    state = {
        name: torch.zeros(shape) for name, shape in shapes("vit_norm_ti_star", norm, norm_blocks=blocks, classes=2).items()
    }
    if not blocks:
        with pytest.raises(ValueError, match="'layer', 'insnorm', 'gnorm'"):
            dynavit.import_released(state)
        return
    model = dynavit.import_released(state)
    report = model.import_report
    assert (report["arch"], report["norm"], report["norm_blocks"], report["assumed"]) == ("vit_norm_ti_star", norm, blocks, {})
    assert model.token_enters == blocks
    with pytest.raises(ValueError, match=f"first {blocks} blocks"):
        dynavit.import_released(state, norm_blocks=blocks - 1)


@pytest.mark.parametrize("norm", ALIKE)
def test_norms_that_look_alike_must_be_named(norm):
    state = {name: torch.zeros(shape) for name, shape in shapes("vit_norm_ti_star", norm, classes=2).items()}
    with pytest.raises(ValueError, match="norm= one of 'layer', 'insnorm', 'gnorm'"):
        dynavit.import_released(state)
    model = dynavit.import_released(state, norm=norm)
    assert model.import_report["assumed"] == {"norm_blocks": 10}
    assert model.token_enters == 10
    given = dynavit.import_released(state, norm=norm, norm_blocks=6)
    assert given.import_report["assumed"] == {}
    assert given.token_enters == given.norm_blocks == 6


@pytest.mark.parametrize(
    ("arch", "norm", "candidates"),
    [
        ("vit_norm_b", "batch", "'vit_norm_b', 'vit_norm_b_star'"),
        ("vit_ti", "scale", "'vit_ti', 'vit_ti_star'"),
        ("vit_b_star", "power", "'vit_b', 'vit_b_star'"),
    ],
)
def test_models_that_differ_in_heads_only_must_be_named(arch, norm, candidates):
    state = meta_state(arch, norm)
    with pytest.raises(ValueError, match=f"arch= one of {candidates}"):
        dynavit.import_released(state)


def test_everything_unclear_is_said_at_once():
    with pytest.raises(ValueError, match="arch= one of 'vit_ti', 'vit_ti_star'; norm= one of 'layer', 'insnorm', 'gnorm'"):
        dynavit.import_released(meta_state("vit_ti", "layer"))


def test_dtn_shows_its_heads():
    for arch in ("vit_norm_b", "vit_norm_b_star"):
        state = {name: torch.zeros(()).expand(shape) for name, shape in shapes(arch, "dtn", classes=2).items()}
        assert dynavit.import_released(state).import_report["arch"] == arch


@pytest.mark.parametrize("arch", ["pvt_tiny_norm", "pvt_small_norm"])
def test_pvt_is_known_by_its_depths(arch):
    model = dynavit.import_released({name: torch.zeros(shape) for name, shape in shapes(arch, "dtn_pool").items()})
    assert isinstance(model, PyramidVisionTransformer)
    assert (model.import_report["arch"], model.import_report["norm"]) == (arch, "dtn_pool")


def meta_state(arch, norm="layer", **options):
    """Shapes without numbers; enough for what is refused before any number is read."""
    return {name: torch.empty(shape, device="meta") for name, shape in shapes(arch, norm, **options).items()}


# --- wrappers, sizes, options


@pytest.mark.parametrize("wrapper", ["state_dict", "model", "model_state_dict"])
def test_wrapped_checkpoints(tmp_path, wrapper):
    state = numbered(shapes("vit_norm_ti_star", "dtn", classes=3))
    wrapped = {"epoch": 3, wrapper: {f"module.{name}": value for name, value in state.items()}, "arch": "deit"}
    torch.save(wrapped, tmp_path / "last.pth.tar")
    model = dynavit.load_released(tmp_path / "last.pth.tar")
    assert model.import_report["source"] == wrapper
    want = dynavit.import_released(state).state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(value, want[name])


def test_averaged_weights_on_request():
    state = numbered(shapes("vit_norm_ti_star", "dtn", classes=3))
    averaged = {name: value + 1 for name, value in state.items()}
    checkpoint = {"state_dict": state, "state_dict_ema": averaged}
    assert dynavit.import_released(checkpoint).head.bias[0] == state["head.bias"][0]
    assert dynavit.import_released(checkpoint, ema=True).head.bias[0] == averaged["head.bias"][0]
    with pytest.raises(ValueError, match="no averaged weights"):
        dynavit.import_released(state, ema=True)


def test_a_file_that_could_run_code_is_refused(tmp_path):
    torch.save({"state_dict": {}, "args": re.compile("x")}, tmp_path / "evil.pth")
    with pytest.raises(Exception, match="[Ww]eights.only"):
        dynavit.load_released(tmp_path / "evil.pth")


def test_the_state_dict_is_left_alone():
    state = numbered(shapes("vit_ti_star", "scale", classes=3))
    before = {name: value.clone() for name, value in state.items()}
    model = dynavit.import_released(state, arch="vit_ti_star")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert all(torch.equal(value, before[name]) for name, value in state.items())


def test_half_precision_becomes_float32():
    state = {name: value.half() for name, value in random_state("vit_norm_ti_star", "dtn").items()}
    model = dynavit.import_released(state)
    assert model.head.weight.dtype == torch.float32
    assert torch.equal(model.head.weight, state["head.weight"].float())


def test_other_image_sizes_are_read_from_the_positions():
    names = shapes("vit_norm_ti_star", "dtn", classes=3) | {"pos_embed": (1, 28 * 28, 192)}
    model = dynavit.import_released({name: torch.zeros(shape) for name, shape in names.items()})
    assert model.import_report["norm"] == "dtn_pool"  # the only one the release could run there
    assert model.blocks[0].norm1.pool == 2
    assert model.patch_embed.img_size == (448, 448)
    t2t = shapes("t2t_vit_7") | {"pos_embed": (1, 1 + 24 * 24, 256)}
    assert dynavit.import_released({n: torch.zeros(s) for n, s in t2t.items()}).default_cfg["input_size"] == (3, 384, 384)


def random_state(arch, norm="layer", **options):
    return {name: dtn_value(name, shape) for name, shape in shapes(arch, norm, **options).items()}


def test_a_class_token_that_never_enters_is_left_out_as_released():
    """With norm_blocks = depth the release forgets its class token and classifies the first patch."""
    state = random_state("vit_norm_ti_star", "scale", norm_blocks=12, classes=5)
    model = dynavit.import_released(state)
    assert model.import_report["dropped"] == ["cls_token"]
    x = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        tokens = model.forward_features(x)
        assert tokens.shape == (1, 196, 192)
        assert torch.equal(model(x), model.head(tokens[:, 0]))


def test_qk_scale_of_t2t():
    state = random_state("t2t_vit_7", classes=5)
    state["pos_embed"] = sinusoid(197, 256)
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        plain, same, other = (dynavit.import_released(state, qk_scale=scale)(x) for scale in (None, 64**-0.5, 256**-0.5))
    assert isinstance(dynavit.import_released(state), T2TVisionTransformer)
    assert torch.allclose(plain, same, atol=1e-5)
    assert (plain - other).abs().max() > 1e-3


# --- refusals


def test_missing_unknown_and_misshapen_keys_are_listed_together():
    state = meta_state("vit_norm_ti_star", "dtn")
    del state["blocks.3.norm2.mean_norm_weight"], state["pos_embed"], state["head.weight"]
    state["blocks.0.attn.qkv.bias"] = state["norm.bias"]
    state["norm.bias"] = torch.empty(191, device="meta")
    state["blocks.1.norm1.pos_proj.weight"] = torch.empty(4, 2, device="meta")
    with pytest.raises(ValueError) as error:
        dynavit.import_released(state, arch="vit_norm_ti_star", norm="dtn")
    text = str(error.value)
    assert "3 missing: pos_embed, blocks.3.norm2.mean_norm_weight, head.weight" in text
    assert "1 unknown: blocks.0.attn.qkv.bias" in text
    assert "norm.bias is (191,), for norm.bias (192,)" in text
    assert "blocks.1.norm1.pos_proj.weight is (4, 2), for blocks.1.norm1.position (4, 3)" in text


def test_an_incomplete_model_is_not_a_smaller_one():
    state = {name: value for name, value in meta_state("vit_ti_star").items() if "layers.11" not in name}
    with pytest.raises(ValueError, match="none of them has width 192, depth 11"):
        dynavit.import_released(state)
    with pytest.raises(ValueError, match="11 missing: transformer.layers.11.0.norm.weight"):
        dynavit.import_released(state, arch="vit_ti_star", norm="layer")


@pytest.mark.parametrize(
    ("state", "options", "message"),
    [
        (meta_state("vit_norm_s"), {"arch": "vit_norm_s_star"}, "not those of vit_norm_s_star; they fit vit_norm_s"),
        (meta_state("vit_norm_s"), {"arch": "vit_s"}, "not those of vit_s; they fit vit_norm_s"),
        (meta_state("vit_norm_b", "dtn"), {"arch": "vit_norm_b_star"}, "they fit vit_norm_b"),
        (meta_state("vit_norm_s"), {"arch": "vit_norm_s", "norm": "dtn"}, "not those of norm='dtn'"),
        (meta_state("vit_norm_s", "batch"), {"norm": "layer"}, "they fit batch"),
        (meta_state("vit_norm_s"), {"arch": "vit_norm_st"}, "unknown released model 'vit_norm_st'. Did you mean"),
        (meta_state("vit_norm_s"), {"norm": "ln"}, "unknown released norm 'ln'"),
        (meta_state("vit_norm_s"), {"norm": "layer", "norm_blocks": 13}, "norm_blocks=13"),
        (meta_state("vit_s"), {"norm": "layer", "norm_blocks": 10}, "vit_s: norm_blocks is a matter of vit_norm_"),
        (meta_state("vit_s"), {"norm": "layer", "qk_scale": 0.1}, "qk_scale is a matter of T2T-ViT"),
        (meta_state("vit_s", "dtn"), {"norm": "dtn"}, "hold the norm 'dtn'; models like vit_s have layer, batch"),
        (meta_state("pvt_tiny_norm", "dtn_var"), {}, "hold the norm 'dtn_var'; models like pvt_tiny_norm have"),
        (meta_state("t2t_vit_7"), {"norm": "dtn"}, "not those of norm='dtn' in t2t_vit_7"),
        (meta_state("t2t_vit_7", "un"), {"norm": "layer"}, "not those of norm='layer' in t2t_vit_7; they fit un"),
        (meta_state("vit_norm_s", "un"), {}, "hold the norm 'un'; models like vit_norm_s have layer, dtn"),
        ({"conv1.weight": torch.zeros(1)}, {}, "no release is known whose keys look like conv1.weight"),
        ({"epoch": 3}, {}, "not a state dict: epoch"),
        ({}, {}, "not a state dict: nothing"),
    ],
)
def test_what_does_not_fit_is_refused(state, options, message):
    with pytest.raises(ValueError, match=message):
        dynavit.import_released(state, **options)


def test_norms_of_two_kinds_are_refused():
    state = meta_state("vit_norm_ti_star", "dtn") | {"blocks.0.norm1.running_phi": torch.empty(1, device="meta")}
    state = {name: value for name, value in state.items() if not name.startswith("blocks.0.norm1.mean")}
    del state["blocks.0.norm1.var_norm_weight"]
    with pytest.raises(ValueError, match="norms of different kinds in one state dict: dtn, power"):
        dynavit.import_released(state)


def test_a_vision_transformer_is_what_comes_back():
    assert isinstance(dynavit.import_released(random_state("vit_norm_ti_star", "dtn", classes=2)), VisionTransformer)
