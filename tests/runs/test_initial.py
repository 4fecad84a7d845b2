"""Weights from elsewhere: the model computes what the source computed, or the error says why it cannot."""

import functools
import socket

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

import dynavit
from dynavit.engine.checkpoint import Checkpoints, Snapshot
from dynavit.runs import initial
from dynavit.runs.initial import initial_weights
from dynavit.runs.model_files import ModelCard
from models.released.states import shapes
from norms.guests import EXAMPLE, a_guest


def build(seed=0, **options):
    """A small vision transformer with every number drawn, so that nothing is equal by default."""
    torch.manual_seed(seed)
    model = dynavit.create_model("vit_micro", **{"depth": 2, "embed_dim": 32, "in_chans": 3, **options}).eval()
    return draw(model)


@torch.no_grad()
def draw(model):
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.add_(0.2 * torch.randn_like(tensor).abs())
    return model


def images(*shape, seed=7):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stored(model, tmp_path):
    path = tmp_path / "source.safetensors"
    save_file(model.state_dict(), path)
    return str(path)


def run_of(model, options, tmp_path, ema=None):
    """A run directory with this model in its last checkpoint."""
    run = tmp_path / "run"
    ModelCard({"name": "vit_micro", "depth": 2, "embed_dim": 32, "in_chans": 3, **options}, [], {}, {}).write(run)
    Checkpoints(run / "checkpoints").save(Snapshot(model.state_dict(), ema and ema.state_dict(), {"step": 1}))
    return str(run)


@torch.no_grad()
def same(a, b, tolerance=1e-5):
    return (a - b).abs().max() <= tolerance * b.abs().max()


def snapshot(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def refused(model, source, match):
    """The error, after which the model is what it was."""
    before = snapshot(model)
    with pytest.raises(ValueError, match=match) as caught:
        initial_weights(model, source)
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    return str(caught.value)


# --- where weights come from


def test_a_safetensors_file(tmp_path):
    source, model = build(0), build(1)
    assert not same(model(images(2, 3, 8, 8)), source(images(2, 3, 8, 8)))
    notes = initial_weights(model, stored(source, tmp_path))
    assert torch.equal(model(images(2, 3, 8, 8)), source(images(2, 3, 8, 8)))
    count = len(model.state_dict())
    assert len(notes) == 1 and notes[0].startswith(f"{count} of the model's {count} tensors come from")


@pytest.mark.parametrize("containers", [(), ("model",), ("state_dict",), ("model", "state_dict"), ("model_state_dict",)])
@pytest.mark.parametrize("front", ["", "module.", "module._orig_mod."])
def test_files_of_torch_save(tmp_path, containers, front):
    source, model = build(0), build(1)
    content = {front + name: tensor for name, tensor in source.state_dict().items()}
    for container in reversed(containers):
        content = {container: content, "epoch": 3}
    torch.save(content, tmp_path / "last.pth.tar")
    initial_weights(model, str(tmp_path / "last.pth.tar"))
    assert torch.equal(model.head.weight, source.head.weight)


@pytest.mark.parametrize("averaged", ["state_dict_ema", "model_ema"])
def test_averaged_weights_come_first(tmp_path, averaged):
    source, ema, model = build(0), build(1), build(2)
    torch.save({"state_dict": source.state_dict(), averaged: ema.state_dict()}, tmp_path / "last.pth")
    initial_weights(model, str(tmp_path / "last.pth"))
    assert torch.equal(model.head.weight, ema.head.weight)


@pytest.mark.parametrize("averaged", [False, True])
def test_a_run(tmp_path, averaged):
    source, ema, model = build(0), build(1) if averaged else None, build(2)
    notes = initial_weights(model, run_of(source, {}, tmp_path, ema))
    assert torch.equal(model.head.weight, (ema or source).head.weight)
    assert ("averaged" in notes[0]) == averaged


def released(arch, norm):
    """A state dict of its own each time, of tensors that nobody changes."""
    return dict(_released(arch, norm))


@functools.cache
def _released(arch, norm):
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes(arch, norm, classes=3).items()}


@pytest.mark.parametrize("norm", ["dtn", *(pytest.param(norm, marks=pytest.mark.slow) for norm in ("batch", "power", "scale"))])
def test_a_release(tmp_path, norm):
    state = released("vit_norm_ti_star", norm)
    torch.save({"state_dict": state}, tmp_path / "dtn.pth")
    model = dynavit.import_released(state)
    want = snapshot(model)
    for tensor in model.state_dict().values():
        tensor.zero_()
    notes = initial_weights(model, str(tmp_path / "dtn.pth"))
    assert all(torch.equal(tensor, want[name]) for name, tensor in model.state_dict().items())
    assert len(notes) == 1 and "vit_norm_ti_star" in notes[0]


def test_a_release_that_needs_to_be_told_more(tmp_path):
    torch.save(released("vit_ti", "layer"), tmp_path / "vit.pth")
    refused(build(), str(tmp_path / "vit.pth"), "Please say arch=.*load_released")


def test_timm_by_name(monkeypatch):
    """Their vision transformer computes the same with our parts."""
    import timm

    options = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 5}
    torch.manual_seed(0)
    theirs = draw(timm.create_model("vit_tiny_patch16_224", **options)).eval()
    asked = []
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: asked.append((name, pretrained)) or theirs)
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "heads": 3, "num_classes": 5}
    model = dynavit.create_model("vit_tiny", class_token="start", qkv_bias=True, norm_options={"eps": 1e-6}, **size).eval()
    notes = initial_weights(model, "timm:vit_tiny_patch16_224.augreg_in21k")
    assert asked == [("vit_tiny_patch16_224.augreg_in21k", True)] and len(notes) == 1
    assert same(model(images(2, 3, 32, 32)), theirs(images(2, 3, 32, 32)), 1e-4)  # the last norm has another eps

    unbiased = dynavit.create_model("vit_tiny", class_token="start", **size)
    refused(unbiased, "timm:vit_tiny_patch16_224", "2 surplus: blocks.0.attn.qkv.bias, .*set model_options.qkv_bias to true")
    other_heads = dynavit.create_model("vit_tiny", class_token="start", qkv_bias=True, **{**size, "heads": 4})
    refused(other_heads, "timm:vit_tiny_patch16_224", "blocks.0.attn has 3 heads in timm:.* and 4 in the model")


def test_timm_without_a_network(monkeypatch):
    import timm

    def fail(name, pretrained):
        raise ConnectionError("no route to the hub\nand many more lines")

    monkeypatch.setattr(timm, "create_model", fail)
    with socket.socket() as taken:  # nobody listens there
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{taken.getsockname()[1]}")
        refused(build(), "timm:vit_tiny_patch16_224", r"weights of timm:vit_tiny_\w+ cannot be fetched: no network")
    monkeypatch.setattr(initial, "require_network", lambda address, what: None)
    message = refused(build(), "timm:vit_tiny_patch16_224", r"could not be downloaded \(ConnectionError: no route to the hub\)")
    assert "network" in message
    refused(build(), "timm:vit_tinny_patch16_224", "nearest are .*vit_tiny_patch16_224")


def test_sources_that_are_none(tmp_path):
    refused(build(), str(tmp_path / "nowhere"), "no such file .* a run directory")
    refused(build(), str(tmp_path), "has no model.json")
    for name in ("text.pth", "text.safetensors"):
        (tmp_path / name).write_text("not a checkpoint")
        refused(build(), str(tmp_path / name), name)
    torch.save({"optimizer": {"lr": 1.0}, "epoch": 3}, tmp_path / "rest.pth")
    refused(build(), str(tmp_path / "rest.pth"), "rest.pth holds no state dict.*found optimizer, epoch")
    torch.save([1, 2], tmp_path / "list.pth")
    refused(build(), str(tmp_path / "list.pth"), "found list")
    save_file({"layer1.0.conv1.weight": torch.zeros(1)}, tmp_path / "resnet.safetensors")
    refused(build(), str(tmp_path / "resnet.safetensors"), "nothing in common.*layer1.0.conv1.weight")


# --- the classifier


def test_another_number_of_classes(tmp_path):
    source, model = build(0, num_classes=10), build(1, num_classes=4)
    before = snapshot(model)
    notes = initial_weights(model, stored(source, tmp_path))
    assert torch.equal(model.head.weight, before["head.weight"]) and torch.equal(model.head.bias, before["head.bias"])
    assert torch.equal(model.norm.weight, source.norm.weight)
    assert notes[1:] == ["the classifier head starts fresh: it has 4 classes, the source's 10"]
    assert notes[0].startswith(f"{len(before) - 2} of the model's {len(before)} ")


def test_a_source_without_classifier(tmp_path):
    notes = initial_weights(build(1), stored(build(0, num_classes=0), tmp_path))
    assert notes[1:] == ["the classifier head starts fresh: it has 10 classes, the source's is missing"]


def test_a_classifier_deeper_inside(tmp_path):
    def swin(classes):
        small = {"img_size": 32, "patch_size": 4, "window_size": 4, "embed_dim": 8, "depths": (1, 1), "num_heads": (1, 2)}
        return dynavit.create_model("swin_tiny_patch4_window7_224", num_classes=classes, **small)

    notes = initial_weights(swin(3), stored(swin(7), tmp_path))
    assert notes[1:] == ["the classifier head.fc starts fresh: it has 3 classes, the source's 7"]


# --- positions and the class token


@pytest.mark.parametrize("token", ["start", "late", "none"])
@pytest.mark.parametrize(("old", "new", "known"), [(8, (12, 16), False), ((8, 16), (16, 8), True), ((8, 12), 16, True)])
def test_positions_of_another_grid(tmp_path, token, old, new, known):
    """The model computes on images of its size what the source, which resizes its positions, computes on them."""
    options = {"img_size": old, "class_token": token}
    source, model = build(0, **options), build(1, img_size=new, class_token=token)
    notes = initial_weights(model, run_of(source, options, tmp_path) if known else stored(source, tmp_path))
    batch = images(2, 3, *(new if isinstance(new, tuple) else (new, new)))
    assert same(model(batch), source(batch))
    assert len(notes) == 2 and notes[1].startswith("pos_embed is resampled from")


def test_positions_of_a_pyramid(tmp_path):
    torch.manual_seed(0)
    source = draw(dynavit.create_model("test_pvt", img_size=32)).eval()
    model = dynavit.create_model("test_pvt", img_size=(48, 64)).eval()
    notes = initial_weights(model, stored(source, tmp_path))
    batch = images(1, 3, 48, 64)
    assert same(model(batch), source(batch))
    assert len(notes) == 5 and notes[4] == "pos_embed4 is resampled from 2x2 to 3x4 positions"


def test_an_unknown_grid_that_is_not_square(tmp_path):
    refused(build(1, img_size=8), stored(build(0, img_size=(4, 12)), tmp_path), "pos_embed 1x12x32 for 1x16x32")


@pytest.mark.parametrize(("old", "new", "what"), [("start", "late", "loses"), ("late", "start", "gains")])
def test_a_class_token_keeps_its_value(tmp_path, old, new, what):
    """A late token that enters before the first block is one from the start, but for where its position is kept."""
    options = {"norm_blocks": 0}
    source, model = build(0, class_token=old, **options), build(1, class_token=new, **options)
    notes = initial_weights(model, stored(source, tmp_path))
    assert same(model(images(2, 3, 8, 8)), source(images(2, 3, 8, 8)))
    assert notes[1:] == [f"pos_embed {what} the position of the class token"]


def test_a_class_token_comes_or_goes(tmp_path):
    model = build(1, class_token="start")
    before = snapshot(model)
    notes = initial_weights(model, stored(source := build(0, class_token="none"), tmp_path))
    assert torch.equal(model.cls_token, before["cls_token"])
    assert torch.equal(model.pos_embed[:, 1:], source.pos_embed) and not model.pos_embed[:, 0].any()
    assert notes[-1] == "the class token starts fresh, the source has none"

    model = build(1, class_token="none")
    notes = initial_weights(model, stored(source := build(0, class_token="start"), tmp_path))
    assert torch.equal(model.pos_embed, source.pos_embed[:, 1:])
    assert notes[-1] == "the source's class token is not used, the model has none"


# --- the patch embedding


def test_colour_to_grey_and_back(tmp_path):
    grey = images(2, 1, 8, 8)
    source, model = build(0, in_chans=3), build(1, in_chans=1)
    notes = initial_weights(model, stored(source, tmp_path))
    assert same(model(grey), source(grey.expand(-1, 3, -1, -1)))
    assert notes[1:] == ["patch_embed.proj is adapted from 3 to 1 channels"]
    source, model = build(0, in_chans=1), build(1, in_chans=3)
    initial_weights(model, stored(source, tmp_path))
    assert same(model(grey.expand(-1, 3, -1, -1)), source(grey))
    refused(build(1, in_chans=4), stored(build(0, in_chans=5), tmp_path), "1 of another shape: patch_embed.proj.weight")


def test_patches_of_another_size(tmp_path):
    """A larger patch that shows the same gives the same token."""
    source, model = build(0, patch_size=4, img_size=16), build(1, patch_size=8, img_size=32)
    notes = initial_weights(model, stored(source, tmp_path))
    patch = images(5, 3, 4, 4)
    larger = F.interpolate(patch, (8, 8), mode="bicubic", antialias=True)
    assert same(model.patch_embed.proj(larger), source.patch_embed.proj(patch), 1e-4)
    assert notes[1:] == ["patch_embed.proj is resampled from patches of 4x4 to 8x8 pixels"]


# --- norms


def test_other_norms_take_what_they_share(tmp_path):
    source, model = build(0, norm="ln"), build(1, norm="dtn")
    before = snapshot(model)
    notes = initial_weights(model, stored(source, tmp_path))
    for name, tensor in model.state_dict().items():
        last = name.rpartition(".")[2]
        if last in ("mean_logit", "var_logit"):
            assert torch.allclose(tensor.sigmoid(), torch.tensor(0.98)), "nearly the source's LayerNorm"
        else:
            assert torch.equal(tensor, before[name] if last == "position" else source.state_dict()[name])
    fresh, near = notes[1:]
    assert fresh == "12 tensors of norms start fresh (blocks.0.norm1.mean_logit, ...)"
    assert near == "4 norms start near the source's LayerNorm"

    source = model
    model = build(2, norm="rms")
    notes = initial_weights(model, stored(source, tmp_path))
    assert torch.equal(model.blocks[1].norm2.weight, source.blocks[1].norm2.weight)
    assert notes[1:] == ["16 tensors of the source's norms are not used (blocks.0.norm1.bias, ...)"]


@pytest.mark.parametrize("norm", ["dtn", "sn"])
def test_linear_shares_start_as_the_source_exactly(tmp_path, norm):
    source, model = build(0, norm="ln"), build(1, norm=norm, norm_options={"shares": "linear"})
    notes = initial_weights(model, stored(source, tmp_path))
    assert notes[-1] == "4 norms start as the source's LayerNorm exactly"
    assert same(model(images(2, 3, 8, 8)), source(images(2, 3, 8, 8)), 1e-5)
    names = [name for name in model.state_dict() if name.endswith(("_share", "_rest"))]
    assert len(names) == 8 and not any(name.endswith("_logit") for name in model.state_dict())
    again = build(2, norm=norm, norm_options={"shares": "linear"})
    notes = initial_weights(again, stored(model, tmp_path))
    assert len(notes) == 1 and all(torch.equal(again.state_dict()[name], model.state_dict()[name]) for name in names)


def test_only_norms_that_can_be_layer_norm_start_near_it(tmp_path):
    notes = initial_weights(build(1, norm="dtn_released"), stored(build(0, norm="ln"), tmp_path))
    assert len(notes) == 2 and notes[1].startswith("12 tensors of norms start fresh")
    with a_guest(EXAMPLE):
        model = build(1, norm="mine")
        notes = initial_weights(model, stored(build(0, norm="ln"), tmp_path))
        assert notes[2] == "4 norms start near the source's LayerNorm"
        assert torch.equal(model.blocks[1].norm2.share, torch.full_like(model.blocks[1].norm2.share, 0.98))


@pytest.mark.parametrize("norm", ["prepbn", "ldfn"])
@pytest.mark.parametrize("known", [False, True])
def test_norms_that_begin_as_layer_norm_begin_as_the_source_s(tmp_path, norm, known):
    source, model = build(0, norm="ln"), build(1, norm=norm)
    notes = initial_weights(model, run_of(source, {"norm": "ln"}, tmp_path) if known else stored(source, tmp_path))
    assert torch.equal(model.blocks[0].norm1.ln_weight, source.blocks[0].norm1.weight)
    for module in model.modules():
        if hasattr(module, "set_progress"):
            module.set_progress(0, 100)
    assert same(model(images(2, 3, 8, 8)), source(images(2, 3, 8, 8)), 1e-4)
    assert not any("ln_weight" in note for note in notes)


def test_an_annealed_source_brings_its_own_layer_norm(tmp_path):
    source, model = build(0, norm="prepbn"), build(1, norm="prepbn")
    initial_weights(model, stored(source, tmp_path))
    assert torch.equal(model.blocks[0].norm1.ln_weight, source.blocks[0].norm1.ln_weight)


def test_running_statistics_start_fresh(tmp_path):
    model = build(1, norm="bn")
    before = snapshot(model)
    notes = initial_weights(model, stored(build(0, norm="ln"), tmp_path))
    assert torch.equal(model.blocks[0].norm1.running_mean, before["blocks.0.norm1.running_mean"])
    assert notes[1].startswith("10 tensors of norms start fresh (blocks.0.norm1.running_mean")


def test_norms_of_torch_and_a_model_that_says_nothing_of_itself(tmp_path):
    source, model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)), nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    notes = initial_weights(model, stored(source, tmp_path))
    assert torch.equal(model[0].weight, source[0].weight)
    assert notes[1:] == ["3 tensors of norms start fresh (1.running_mean, ...)"]


# --- what does not fit


def test_misfits_are_named_and_change_nothing(tmp_path):
    source = stored(build(0), tmp_path)
    message = refused(build(1, depth=1), source, "do not fit the model.*surplus: blocks.1.")
    assert "--model_options" in message and "missing" not in message
    refused(build(1, depth=3), source, "missing: blocks.2.attn.qkv.weight")  # its norms are new, its other parts are an error
    refused(build(1, embed_dim=64), source, "of another shape: .*blocks.0.attn.qkv.weight 96x32 for 192x64")
    refused(build(1, qkv_bias=True), source, "2 missing: blocks.0.attn.qkv.bias.*set model_options.qkv_bias to false")


@pytest.mark.parametrize(
    ("name", "shape", "found"),
    [
        ("head.weight", (10, 7), "head.weight 10x7 for 10x32"),  # as many classes, of other features
        ("head.weight", (4, 7), "head.weight 4x7 for 10x32"),
        ("blocks.1.norm2.weight", (7,), "blocks.1.norm2.weight 7 for 32"),  # a norm of the same kind
        ("blocks.1.norm2.bias", (32, 1), "blocks.1.norm2.bias 32x1 for 32"),
    ],
)
def test_shapes_of_another_model_are_not_taken_for_a_new_classifier_or_norm(tmp_path, name, shape, found):
    state = build(0).state_dict() | {name: torch.zeros(shape)}
    save_file(state, tmp_path / "x.safetensors")
    refused(build(1), str(tmp_path / "x.safetensors"), f"1 of another shape: {found}. Nothing was loaded")


def test_a_partial_fit_is_taken_on_request_and_named(tmp_path):
    source, model = build(0, depth=3), build(1, qkv_bias=True)
    before = snapshot(model)
    state = source.state_dict() | {"blocks.0.mlp.fc1.bias": torch.zeros(7)}
    save_file(state, tmp_path / "x.safetensors")
    assert "--init-partial" in refused(build(1), str(tmp_path / "x.safetensors"), "do not fit")
    notes = initial_weights(model, str(tmp_path / "x.safetensors"), partial=True)
    assert torch.equal(model.blocks[1].mlp.fc1.weight, source.blocks[1].mlp.fc1.weight)
    for name in ("blocks.0.attn.qkv.bias", "blocks.1.attn.qkv.bias", "blocks.0.mlp.fc1.bias"):
        assert torch.equal(model.state_dict()[name], before[name])
    assert notes[0].startswith(f"{len(before) - 3} of the model's {len(before)} tensors come from")
    assert notes[1].startswith("the weights fit in part; tensors 2 missing: blocks.0.attn.qkv.bias, ")
    assert "surplus: blocks.2." in notes[1] and "1 of another shape: blocks.0.mlp.fc1.bias 7 for 128" in notes[1]
    complete = initial_weights(build(1), stored(build(0), tmp_path), partial=True)
    assert len(complete) == 1


# --- numbers that are no weights

UNSOUND = [
    (lambda tensor: tensor.int(), "1 of int32 numbers"),
    (lambda tensor: tensor.to(torch.int8), "1 of int8 numbers"),
    (lambda tensor: tensor > 0, "1 of bool numbers"),
    (lambda tensor: tensor.to(torch.complex64), "1 of complex64 numbers"),
    (lambda tensor: tensor * float("nan"), "1 with NaN or infinity"),
    (lambda tensor: (tensor / 0).bfloat16(), "1 with NaN or infinity"),
    (lambda tensor: tensor.to_sparse(), "1 that are sparse or quantised"),
]


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize(("change", "found"), UNSOUND)
def test_numbers_that_are_no_weights(tmp_path, change, found, partial):
    state = build(0).state_dict()
    state["blocks.1.attn.qkv.weight"] = change(state["blocks.1.attn.qkv.weight"])
    torch.save(state, tmp_path / "x.pth")
    model = build(1)
    before = snapshot(model)
    with pytest.raises(ValueError, match=f"x.pth holds no weights .* Tensors {found}: blocks.1.attn.qkv.weight"):
        initial_weights(model, str(tmp_path / "x.pth"), partial=partial)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize(
    ("change", "found"), [UNSOUND[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in UNSOUND[1:])]
)
def test_numbers_of_a_release_that_are_no_weights(tmp_path, change, found):
    state = released("vit_norm_ti_star", "dtn")
    state["blocks.1.attn.qkv.weight"] = change(state["blocks.1.attn.qkv.weight"])
    torch.save(state, tmp_path / "x.pth")
    with pytest.raises(ValueError, match=f"x.pth: .* Tensors {found}: blocks.1.attn.qkv.weight"):
        dynavit.load_released(tmp_path / "x.pth")


def test_halves_and_counters_are_weights(tmp_path):
    source, model = build(0, norm="bn"), build(1, norm="bn")
    torch.save({name: t.half() if t.is_floating_point() else t for name, t in source.state_dict().items()}, tmp_path / "x.pth")
    initial_weights(model, str(tmp_path / "x.pth"))
    assert torch.equal(model.head.weight, source.head.weight.half().float())


# ---- the backbone of a detector


@pytest.mark.parametrize("backbone", ["pvt_nano", "pvt_v2_b0"])
def test_a_detector_starts_from_a_classifier(backbone, tmp_path):
    torch.manual_seed(0)
    classifier = dynavit.create_model(backbone, num_classes=5).eval()
    save_file(classifier.state_dict(), tmp_path / "weights.safetensors")
    detector = dynavit.create_model("retinanet", num_classes=3, backbone=backbone, width=16, tower=1).eval()
    fpn = detector.fpn.laterals[0].weight.clone()
    notes = initial_weights(detector, str(tmp_path / "weights.safetensors"))
    assert any("the source's classifier is not used" in note for note in notes)
    assert torch.equal(detector.fpn.laterals[0].weight, fpn)
    x = torch.randn(1, 3, 224, 224)
    expected = classifier.forward_intermediates(x, indices=[1, 2], intermediates_only=True)
    for found, wanted in zip(detector.pyramid(x), expected, strict=False):  # stage 4 of PVT has no class token here
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    other = dynavit.create_model("retinanet", num_classes=3, backbone="vit_tiny", width=16, tower=1)
    with pytest.raises(ValueError, match="nothing in common|do not fit"):
        initial_weights(other, str(tmp_path / "weights.safetensors"))
