"""Constant parts of LayerNorm, RMS and DTN fold: weight and bias, mean removal, and kernels on one grid."""

import pytest
import torch
from torch import nn

import dynavit
from deploy.fold_models import Through, difference, fold, noise, settled, small_vit

C = 6
TOKENS = torch.randn(2, 9, C, generator=torch.Generator().manual_seed(1)).double()
IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1)).double()


def rows_of(folded):
    return {row.path: row for row in folded.fold_report.rows}


@pytest.mark.parametrize("name", ["ln", "rms", "dyt", "scale", "sn", "nn.LayerNorm", "nn.RMSNorm", "nn.GroupNorm"])
def test_weight_and_bias_fold_forward(name):
    torch.manual_seed(0)
    make = {"nn.LayerNorm": nn.LayerNorm, "nn.RMSNorm": nn.RMSNorm, "nn.GroupNorm": lambda c: nn.GroupNorm(2, c)}.get(name)
    norm = make(C) if make else dynavit.create_norm(name, C)

    def run(m, x):
        return m.read(m.norm(x.transpose(1, 2)).transpose(1, 2) if name == "nn.GroupNorm" else m.norm(x))

    model = settled(Through(run, norm=norm, read=nn.Linear(C, C))).double()
    folded = fold(model, example=TOKENS)
    assert difference(model, folded, TOKENS) < 1e-12
    assert rows_of(folded)["norm"].action == "partly" and rows_of(folded)["norm"].into == ["read.weight"]
    assert not {"norm.weight", "norm.bias"} & set(folded.state_dict())


def test_a_scale_without_shift_passes_padding():
    torch.manual_seed(0)

    def run(m, x):
        return m.conv(m.norm(x).transpose(1, 2).unflatten(2, (3, 3)))

    model = settled(Through(run, norm=nn.RMSNorm(C), conv=nn.Conv2d(C, C, 3, padding=1, bias=False))).double()
    folded = fold(model, example=TOKENS)
    assert difference(model, folded, TOKENS) < 1e-12
    assert rows_of(folded)["norm"].action == "partly" and folded.conv.bias is None


def test_layer_norms_of_a_transformer_become_rms_norms():
    model = settled(small_vit(norm="ln", class_token="start")).double()
    folded = fold(model)
    assert difference(model, folded, IMAGES) < 1e-12
    assert {type(norm).__name__ for path, norm in folded.named_modules() if "norm" in path} == {"RMSNorm"}
    for tensor, axis in ((folded.pos_embed, -1), (folded.cls_token, -1), (folded.blocks[1].mlp.fc2.weight, 0)):
        assert tensor.mean(axis).abs().max() < 1e-15
    again = fold(folded, fresh=lambda: noise(model))
    assert all(torch.equal(tensor, folded.state_dict()[name]) for name, tensor in again.state_dict().items())


# Each reads or writes the stream of `x = write(...)` in a way that forbids moving the mean.
FORBIDDEN = {
    "also written by the model's input": lambda m, x: m.read(m.norm(x + m.write(x))),
    "also read by tanh": lambda m, x: m.read(m.norm(y := m.write(x))) + y.tanh(),
    "also read by the caller of the model": lambda m, x: (m.read(m.norm(y := m.write(x))), y),
    "also written by mul": lambda m, x: m.read(m.norm(m.write(x) * 2.0)),
    "also written by conv1d in groups": lambda m, x: m.read(m.norm(m.deep(x.transpose(1, 2)).transpose(1, 2))),
    "channels are mixed by add": lambda m, x: m.read(m.norm((y := m.write(x)) + y.flip(-1))),
    "in another order": lambda m, x: m.read(m.norm(m.write(x).flip(-1))),
    "which has not 6 channels": lambda m, x: m.read(m.norm(m.wide(x)[..., :C])),
    "whose weight is computed": lambda m, x: m.read(m.norm(nn.functional.linear(x, m.write.weight * 2))),
    "write.weight is also used": lambda m, x: m.read(m.norm(m.write(x))) + m.write(x.tanh()).tanh(),
    "reads other values too": lambda m, x: m.read(m.norm(m.write(x))) + m.read(m.norm(x.tanh())),
}


def test_the_mean_stays_where_somebody_else_needs_it():
    def case(run):
        parts = {"write": nn.Linear(C, C), "wide": nn.Linear(C, 2 * C), "norm": nn.LayerNorm(C), "read": nn.Linear(C, C)}
        return Through(run, **parts, deep=nn.Conv1d(C, C, 1, groups=2))

    torch.manual_seed(0)
    cases = {f"case{at}": case(run) for at, run in enumerate(FORBIDDEN.values())}
    model = settled(Through(lambda m, x: tuple(getattr(m, name)(x) for name in cases), **cases)).double()
    folded = fold(model, example=TOKENS)
    for name, why in zip(cases, FORBIDDEN, strict=True):
        row = rows_of(folded)[f"{name}.norm"]
        assert row.reason.startswith("mean removal: "), (why, row)
        assert isinstance(folded.get_submodule(row.path), nn.LayerNorm)
        if why != "reads other values too":  # there the other stream's reason is named
            assert why in row.reason.replace(f"{name}.", "")


@pytest.mark.parametrize("options", [{}, {"average": "uniform"}, {"average": "window", "radius": 2}, {"only_var": True}])
def test_frozen_dtn_is_dtn(options):
    torch.manual_seed(0)
    norm = dynavit.create_norm("dtn", C, heads=2, num_prefix_tokens=1, **options)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    model = Through(lambda m, x: m.read(m.norm(x, grid=(2, 4))), norm=norm, read=nn.Linear(C, C)).double().eval()
    folded = fold(model, example=TOKENS, grid=(2, 4))
    assert folded.fold_report.frozen == ["norm"] and difference(model, folded, TOKENS) < 1e-12
    assert not {"norm.position", "norm.mean_logit", "norm.weight"} & set(folded.state_dict())
    with pytest.raises(ValueError, match="frozen for a grid of 2x4 tokens and got 8 tokens on 4x2"):
        folded.norm(TOKENS, grid=(4, 2))
    with pytest.raises(ValueError, match="got 3 tokens on an unknown grid"):
        folded.norm(TOKENS[:, :4])


def test_a_model_freezes_for_another_grid_than_its_own():
    model = settled(small_vit(norm="dtn", norm_blocks=1, depth=1)).double()
    images = torch.randn(3, 3, 8, 24, generator=torch.Generator().manual_seed(0)).double()
    folded = fold(model, grid=(2, 6), images=images)
    assert difference(model, folded, images) < 1e-12
    with pytest.raises(ValueError, match="frozen for a grid of 2x6"):
        folded(IMAGES)
    with pytest.raises(ValueError, match="gives a grid of 4x4 tokens, not 2x6"):
        fold(model, grid=(2, 6), example=IMAGES)
