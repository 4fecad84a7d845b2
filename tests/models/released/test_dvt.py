"""DVT checkpoints: the same logits, losses and gradients as the released code, costs and thresholds kept, clear refusals."""

import functools
import json
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import dynavit
from dynavit.bench.flops import count_macs
from dynavit.models.released.dvt import EXITS
from dynavit.models.t2t import sinusoid
from models.released.states import draw

GRIDS = (7, 10, 14)
SIZES = {"dvt_t2t_vit_12": (256, 12, 2, "t2t"), "dvt_t2t_vit_14": (384, 14, 3, "t2t"), "dvt_deit_small": (384, 12, 4, "deit")}


def released_shapes(arch, features=True, relations=True, classes=1000):
    """Keys and shapes of the release, from the specification."""
    c, depth, ratio, kind = SIZES[arch]
    heads, found = c // 64, {}

    def layer(name, *weight, bias=True):
        found[f"{name}.weight"] = weight
        if bias:
            found[f"{name}.bias"] = weight[:1]

    for at, (exit, side) in enumerate(zip(EXITS, GRIDS, strict=True)):
        reused = 48 if features and at else 0
        found[f"{exit}.cls_token"], found[f"{exit}.pos_embed"] = (1, 1, c), (1, 1 + side**2, c)
        if kind == "deit":
            kernel = (32, 23, 16)[at]
            layer(f"{exit}.patch_embed.proj", c, 3, kernel, kernel)
        else:
            for layer_at, seen in ((1, 3 * (14, 11, 7)[at] ** 2), (2, 576)):
                path = f"{exit}.tokens_to_token.attention{layer_at}"
                found[f"{path}.w"] = (32, 64)
                layer(f"{path}.kqv", 192, seen)
                for name in ("proj", "mlp.0", "mlp.2"):
                    layer(f"{path}.{name}", 64, 64)
                layer(f"{path}.norm1", seen)
                layer(f"{path}.norm2", 64)
            layer(f"{exit}.tokens_to_token.project", c, 576)
        for i in range(depth):
            block = f"{exit}.blocks.{i}"
            layer(f"{block}.norm1", c)
            layer(f"{block}.attn.qkv", 3 * c, c, bias=kind == "deit")
            layer(f"{block}.attn.proj", c, c)
            layer(f"{block}.norm2", c + reused)
            layer(f"{block}.mlp.fc1", ratio * c, c + reused)
            layer(f"{block}.mlp.fc2", c, ratio * c)
            if reused:
                layer(f"{block}.feature_resuse_mlp.0", c)
                layer(f"{block}.feature_resuse_mlp.1.fc1", 128, c)
                layer(f"{block}.feature_resuse_mlp.1.fc2", 48, 128)
        if relations and at:
            layer(f"{exit}.relation_reuse_conv.0", 3 * heads * depth, heads * depth, 1, 1)
            layer(f"{exit}.relation_reuse_conv.2", heads * depth, 3 * heads * depth, 1, 1)
        layer(f"{exit}.norm", c)
        layer(f"{exit}.head", classes, c)
    return found


def meta_state(arch, **options):
    return {name: torch.empty(shape, device="meta") for name, shape in released_shapes(arch, **options).items()}


# --- the released code's own numbers


def golden_value(name, shape, fixed):
    if f"fixed/{name}" in fixed:
        value = fixed[f"fixed/{name}"]
    elif name.endswith(".pos_embed"):
        value = sinusoid(*shape[1:]).numpy()
    else:
        scale = 0.02 if ".kqv." in name else 0.15 if ".relation_reuse_conv." in name else 0.05
        value = scale * draw(name, shape)
        value += bool(re.search(r"(?:^|\.)(?:norm\d?|feature_resuse_mlp\.0)\.weight$", name))
    return torch.from_numpy(np.asarray(value)).float()


@pytest.fixture(scope="module")
def golden(shared_golden):
    """case -> (our cascade, its images in float32, the stored numbers)."""

    @functools.lru_cache(1)  # of 22 million numbers
    def state_of(case):
        fixed = np.load(shared_golden / "dvt" / "t2t12_fr.npz")
        names = json.loads((shared_golden / "dvt" / f"{case}.shapes.json").read_text())
        return {name: golden_value(name, shape, fixed) for name, shape in names.items()}

    def load(case):
        state = {name: value.clone() for name, value in state_of(case).items()}
        images = torch.from_numpy(draw(f"input:{case}", (2, 3, 224, 224))).float()
        return dynavit.import_released(state), images, np.load(shared_golden / "dvt" / f"{case}.npz")

    return load


CASES = {"t2t12_fr": (True, True), "t2t12_f": (True, False), "t2t12_r": (False, True), "t2t12_n": (False, False)}


@pytest.mark.parametrize("case", ["t2t12_fr", *(pytest.param(c, marks=pytest.mark.slow) for c in list(CASES)[1:])])
@torch.no_grad()
def test_logits_of_the_release(golden, case):
    cascade, images, stored = golden(case)
    assert (cascade.reuse.feature, cascade.reuse.relation) == CASES[case]
    assert cascade.import_report["arch"] == "dvt_t2t_vit_12" and not cascade.training
    for exit, logits in zip(EXITS, cascade(images), strict=True):
        assert np.abs(logits.numpy() - stored[f"logits/{exit}"]).max() <= 1e-5
    for exit, logits in zip(EXITS, cascade.double()(images.double()), strict=True):
        assert np.abs(logits.numpy() - stored[f"logits64/{exit}"]).max() <= 1e-12


@pytest.mark.slow  # by default: the logits that all of it ends in
@torch.no_grad()
def test_what_happens_inside_the_exits_is_as_released(golden):
    """Tokens, relations, up-sampled biases and tokens after the first and last block, by slices and moments."""
    cascade, images, stored = golden("t2t12_fr")
    seen = {}

    def record(exit, what, value):
        seen[f"{exit}/{what}"] = value

    for name, exit in zip(EXITS, cascade.exits, strict=True):
        exit.tokenizer.register_forward_hook(lambda m, i, o, n=name: record(n, "tokens", o[0]))
        for at in (0, 11):
            block = exit.blocks[at]
            block.register_forward_hook(lambda m, i, o, n=name, a=at: record(n, f"x{a}", o[0]))
            block.attn.register_forward_hook(lambda m, i, o, n=name, a=at: record(n, f"reuse{a}", i[1]))
            block.attn.register_forward_hook(lambda m, i, o, n=name, a=at: record(n, f"rel{a}", o[1]))
    cascade(images)
    compared = 0
    for name, value in seen.items():
        if value is None:  # no bias at the first exit; the last does not form its logits
            assert name in {f"{EXITS[0]}/reuse{at}" for at in (0, 11)} | {f"{EXITS[2]}/rel{at}" for at in (0, 11)}
            continue
        part = value[0, 0, :6, :6] if value.dim() == 4 else value[0, :4, :8]
        np.testing.assert_allclose(part.numpy(), stored[f"inter/{name}"], rtol=0, atol=2e-5)
        moments = [value.double().mean(), value.double().std(correction=0), value.abs().max()]
        np.testing.assert_allclose(moments, stored[f"stat/{name}"], rtol=1e-4, atol=1e-5)
        compared += 1
    assert compared == 3 * 3 + 2 * 2 + 2 * 2


def test_losses_and_gradients_of_the_release(golden, shared_golden):
    cascade, images, _ = golden("t2t12_fr")
    facts = json.loads((shared_golden / "dvt" / "t2t12_fr.grads.json").read_text())
    targets = torch.tensor(facts["targets"])
    losses = [F.cross_entropy(logits, targets) for logits in cascade(images)]
    assert [loss.item() for loss in losses] == pytest.approx(facts["losses"], abs=1e-5)
    sum(losses).backward()
    ours = {**dict(cascade.named_parameters()), **dict(cascade.named_buffers())}
    renamed = cascade.import_report["renamed"]
    for name, norm in facts["grad_l2"].items():
        value = ours[renamed[name]]
        if norm is None:
            assert not value.requires_grad
        else:
            # A constant added to all logits of a head changes nothing: at the last exit that gradient is 0 but for rounding.
            assert value.grad.double().norm().item() == pytest.approx(norm, rel=2e-4, abs=2e-6), name
    assert len(facts["grad_l2"]) == len(renamed)


QUICK = [("dvt_t2t_vit_12", True, True), ("dvt_deit_small", False, False)]
EVERY = [(arch, *reuse) for arch in SIZES for reuse in CASES.values()]


@pytest.mark.parametrize(
    ("arch", "features", "relations"), [*QUICK, *(pytest.param(*c, marks=pytest.mark.slow) for c in EVERY if c not in QUICK)]
)
def test_multiply_adds_are_the_released_ones_and_those_of_up_sampling(shared_golden, arch, features, relations):
    """The release up-samples without products; ours has two small ones for each block, which are counted."""
    known = json.loads((shared_golden / "dvt" / "gmacs.json").read_text())
    entry = {name.lower(): facts for name, facts in known.items()}[f"{arch}/{'-f'[features]}{'-r'[relations]}"]
    with torch.device("meta"):
        cascade = dynavit.create_model(arch, feature_reuse=features, relation_reuse=relations).eval()
        macs = count_macs(cascade, torch.empty(1, 3, 224, 224))
    c, depth, _, _ = SIZES[arch]
    extra = 0
    for old, new in ((50, 101), (101, 197)):  # nothing is picked on the meta device: both sides are dense products
        extra += relations * depth * (c // 64) * (old * old * new + new * old * new)
        extra += features * depth * 48 * old * new
    assert macs - extra == pytest.approx(1e9 * entry["cumulative"][-1], abs=1)


# --- every number arrives


@pytest.mark.parametrize("arch", [pytest.param(a, marks=[] if a == "dvt_t2t_vit_12" else [pytest.mark.slow]) for a in SIZES])
@pytest.mark.parametrize(("features", "relations"), CASES.values())
def test_every_number_arrives(arch, features, relations):
    names = released_shapes(arch, features, relations, classes=7)
    state = {name: torch.zeros(()).expand(shape) + at for at, (name, shape) in enumerate(names.items(), 1)}
    cascade = dynavit.import_released(state, arch)
    report, ours = cascade.import_report, cascade.state_dict()
    assert (report["arch"], report["norm"], report["dropped"]) == (arch, "layer", [])
    assert (cascade.reuse.feature, cascade.reuse.relation, cascade.num_classes) == (features, relations, 7)
    assert set(report["renamed"]) == set(state) and set(report["renamed"].values()) == set(ours)
    assert len(cascade.released) == 0
    for theirs, name in report["renamed"].items():
        assert torch.equal(ours[name], state[theirs]), theirs
        assert theirs.split(".")[0] == EXITS[int(name.split(".")[1])]
        assert theirs.rpartition(".")[2] == name.rpartition(".")[2]


def test_made_up_state_dicts_have_the_released_keys(shared_golden):
    for case, (features, relations) in CASES.items():
        released = json.loads((shared_golden / "dvt" / f"{case}.shapes.json").read_text())
        assert released_shapes("dvt_t2t_vit_12", features, relations) == {
            name: tuple(shape) for name, shape in released.items()
        }


@pytest.mark.parametrize("arch", [pytest.param(a, marks=[] if a == "dvt_t2t_vit_12" else [pytest.mark.slow]) for a in SIZES])
def test_a_model_is_known_by_its_shapes(arch):
    state = {name: torch.zeros(()).expand(shape) for name, shape in released_shapes(arch, classes=2).items()}
    cascade = dynavit.import_released(state)
    assert cascade.import_report["arch"] == arch
    eps = 1e-6 if arch == "dvt_deit_small" else 1e-5
    blocks = [block for exit in cascade.exits for block in exit.blocks]
    assert {norm.eps for block in blocks for norm in (block.norm1, block.norm2)} == {eps}
    assert {exit.norm.eps for exit in cascade.exits} == {eps}
    assert {block.feature_reuse.norm.eps for block in blocks if block.feature_reuse} == {eps}
    assert {block.attn.heads for block in blocks} == {SIZES[arch][0] // 64}
    assert not cascade(torch.zeros(1, 3, 224, 224))[2].isnan().any()  # the up-sampling maps were filled, too


def test_a_released_file_brings_its_costs_accuracies_and_thresholds(tmp_path):
    state = {name: torch.zeros(shape) for name, shape in released_shapes("dvt_t2t_vit_12", classes=2).items()}
    numbers = {
        "flops": [0.5, 1.5, 3.5],
        "anytime_classification": [70.0, torch.tensor(75.5), 78.0],
        "dynamic_threshold": torch.arange(177).reshape(59, 3).float(),
        "budgeted_batch_classification": [list(range(59)), torch.arange(59)],
    }
    torch.save({"model_state_dict": state, **numbers}, tmp_path / "dvt.pth.tar")
    cascade = dynavit.load_released(tmp_path / "dvt.pth.tar")
    assert cascade.released == {
        "flops": [0.5, 1.5, 3.5],
        "anytime_classification": [70.0, 75.5, 78.0],
        "dynamic_threshold": [[3.0 * row + col for col in range(3)] for row in range(59)],
        "budgeted_batch_classification": [list(range(59)), list(range(59))],
    }
    json.dumps(cascade.released)
    assert cascade.import_report["source"] == "model_state_dict"


# --- refusals


def test_missing_unknown_and_misshapen_keys_are_listed_together():
    state = meta_state("dvt_t2t_vit_12")
    del state["less_token.blocks.3.feature_resuse_mlp.1.fc2.bias"]
    state["normal_token.blocks.0.attn.qkv.bias"] = torch.empty(768, device="meta")
    state["normal_token.pos_embed"] = torch.empty(1, 101, 256, device="meta")
    with pytest.raises(ValueError) as error:
        dynavit.import_released(state)
    text = str(error.value)
    assert "not one of dvt_t2t_vit_12" in text
    assert "1 missing: less_token.blocks.3.feature_resuse_mlp.1.fc2.bias" in text
    assert "1 unknown: normal_token.blocks.0.attn.qkv.bias" in text
    assert "normal_token.pos_embed is (1, 101, 256), for exits.2.pos_embed (1, 197, 256)" in text


@pytest.mark.parametrize(
    ("state", "options", "message"),
    [
        (
            meta_state("dvt_t2t_vit_12"),
            {"arch": "dvt_t2t_vit_14"},
            "12 blocks with 256 channels, .* not those of dvt_t2t_vit_14",
        ),
        (meta_state("dvt_deit_small"), {"arch": "t2t_vit_12"}, "not those of t2t_vit_12"),
        (meta_state("dvt_deit_small"), {"norm": "dtn"}, "a DVT has norm 'layer'"),
        (meta_state("dvt_deit_small"), {"qk_scale": 0.1}, "leave the options out"),
        ({"less_less_token.cls_token": torch.zeros(1)}, {}, "0 blocks with 1 channels, which are not those of any of them"),
        (meta_state("dvt_t2t_vit_12"), {"arch": "dvt_t2t_vit_1"}, "unknown released model 'dvt_t2t_vit_1'. Did you mean"),
    ],
)
def test_refusals(state, options, message):
    with pytest.raises(ValueError, match=message):
        dynavit.import_released(state, **options)
