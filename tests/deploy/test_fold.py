"""Affine norms disappear where the graph allows it, and only there. Exact in float64."""

import copy
import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import dynavit
from deploy.fold_models import Through, all_bn, difference, fold, noise, settled, small_swin, small_vit
from dynavit.deploy.export.program import trace
from dynavit.deploy.fold.stored import folded_structure
from dynavit.norms.factory import norm_class_of

C = 6
TOKENS = torch.randn(2, 9, C, generator=torch.Generator().manual_seed(1)).double()


def folded_pair(run, example=TOKENS, **parts):
    torch.manual_seed(0)
    model = settled(Through(run, **{name: make() for name, make in parts.items()})).double()
    folded = fold(model, example=example)
    assert difference(model, folded, example) < 1e-12
    return model, folded, {row.path: row for row in folded.fold_report.rows}


def bn():
    return dynavit.create_norm("bn", C)


def linear(out=C, bias=True):
    return lambda: nn.Linear(C, out, bias=bias)


def operators(model, example):
    program = torch.export.export(model, (example,), strict=False)
    return {node.target._schema.name for node in program.graph.nodes if hasattr(node.target, "_schema")}


def no_norm_remains(model, example):
    left = {"aten::rsqrt", "aten::batch_norm", "aten::layer_norm", "aten::rms_norm", "aten::sqrt"} & operators(model, example)
    assert not left
    assert not any("running" in name for name in model.state_dict())


# Whole models


@pytest.mark.parametrize(
    ("build", "size"),
    [
        (lambda: all_bn(small_vit()), 16),
        pytest.param(lambda: all_bn(dynavit.create_model("test_pvt")), 32, marks=pytest.mark.slow),
        (lambda: all_bn(small_swin()), 56),
    ],
    ids=["vit", "pvt", "swin"],
)
def test_no_norm_remains_in_transformers(build, size):
    model = build()
    before = copy.deepcopy(model.state_dict())
    random_state = torch.random.get_rng_state()
    folded = fold(model, fresh=build)
    assert torch.equal(torch.random.get_rng_state(), random_state)
    report = folded.fold_report
    assert report.count("folded") == len(report.rows) == len(model.swap_plan.swapped()) and report.error <= report.limit
    assert report.only_shape == ((3, 56, 56) if size == 56 else None)  # Swin pads its windows
    no_norm_remains(folded, torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0)))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    json.dumps(report.to_dict(), allow_nan=False)


def test_blocks_keep_layer_norms_where_the_model_has_them():
    report = fold(settled(small_vit(norm="bn", norm_blocks=1))).fold_report
    actions = {row.path: row.action for row in report.rows}
    assert actions["blocks.0.norm1"] == "folded" and actions["blocks.1.norm1"] == "partly"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pvt_tiny", "swin_tiny_patch4_window7_224", "vit_tiny_patch16_224", "t2t_vit_7"])
def test_no_norm_remains_in_published_models(name):
    torch.manual_seed(0)
    folded = fold(all_bn(dynavit.create_model(name)))
    assert folded.fold_report.count("folded") == len(folded.fold_report.rows)
    no_norm_remains(folded, torch.randn(2, 3, 224, 224))


def test_cascade_folds_in_all_exits():
    torch.manual_seed(0)
    model = settled(dynavit.create_model("dvt_vit_digits", norm="bn", depth=1))
    folded = fold(model)
    assert folded.fold_report.count("folded") == len(folded.fold_report.rows) == 7
    assert len(folded(torch.randn(3, 3, 8, 8))) == 2


def test_a_sequence_model_folds_on_token_numbers():
    torch.manual_seed(0)
    model = settled(dynavit.create_model("test_sequence", norm="bn"))
    report = fold(model, example=torch.randint(1, 10, (2, 16), generator=torch.Generator().manual_seed(0))).fold_report
    assert report.rows and report.error <= report.limit


def test_every_foldable_norm_folds():
    names = [name for name in dynavit.list_norms() if hasattr(norm_class_of(name), "affine_map")]
    parts = {name: dynavit.create_norm(name, C) for name in names}
    assert "bn" in names
    for name, norm in parts.items():
        norm.train()
        if hasattr(norm, "set_progress"):
            norm.set_progress(10, 10)
        torch.manual_seed(len(name))
        for _ in range(3):
            norm(torch.randn(4, 9, C) * 2 + 1)

    def run(m, x):
        return sum(getattr(m, f"{name}_after")(getattr(m, name)(x)) for name in names)

    model = Through(run, **parts, **{f"{name}_after": nn.Linear(C, 4) for name in names}).double().eval()
    folded = fold(model, example=TOKENS)
    assert difference(model, folded, TOKENS) < 1e-12
    assert {row.path: row.action for row in folded.fold_report.rows} == dict.fromkeys(names, "folded")


# Places a map may go to


def test_forward_into_every_reader_and_missing_biases_are_made():
    def run(m, x):
        y = m.norm(x)
        image = y.transpose(1, 2).unflatten(2, (3, 3))
        small = m.conv(image).flatten(2).transpose(1, 2)  # 2 x 2 places
        return m.q(y)[:, :4] + m.k(y.roll(1, 1))[:, :4] + small + m.head(y.mean(1))[:, None]

    parts = {"q": linear(bias=False), "k": linear(), "head": linear(bias=False), "conv": lambda: nn.Conv2d(C, C, 2, bias=False)}
    model, folded, rows = folded_pair(run, norm=bn, **parts)
    assert rows["norm"].into == ["conv.weight", "q.weight", "k.weight", "head.weight"]
    assert folded.q.bias is not None and folded.conv.bias is not None and model.q.bias is None
    assert set(folded.state_dict()) - set(model.state_dict()) == {"q.bias", "head.bias", "conv.bias"}


def test_grouped_convolution_and_part_of_a_joined_input():
    def run(m, x):
        y = torch.cat([m.norm(x), x], -1)
        return m.conv(y.transpose(1, 2).unflatten(2, (3, 3)))

    _, _, rows = folded_pair(run, norm=bn, conv=lambda: nn.Conv2d(2 * C, 8, 3, groups=4))
    assert rows["norm"].action == "folded"


def test_shared_norm_and_shared_reader():
    def run(m, x):
        return m.read(m.norm(x)) + m.read(m.norm(x.tanh()))

    _, folded, rows = folded_pair(run, norm=bn, read=linear(bias=False))
    assert rows["norm"].action == "folded" and folded.read.bias is not None


LEFT = {
    "an output of the model": lambda m, x: m.norm(x),
    "read by add": lambda m, x: m.norm(x) + m.read(m.norm(x)),
    "read.weight also reads something else": lambda m, x: m.read(m.norm(x)) + m.read(x),
    "shared.weight also reads something else": lambda m, x: m.shared(m.norm(x)) + m.shared(m.other(x)),
    "it is joined to other tokens before read.weight": lambda m, x: m.read(torch.cat([x[:, :1], m.norm(x)], 1)),
    "zeros are padded between it and read.weight": lambda m, x: m.read(F.pad(m.norm(x), (0, 0, 1, 0))),
    "wide.weight pads it with zeros": lambda m, x: m.wide(m.norm(x).transpose(1, 2).unflatten(2, (3, 3))),
    "the bias beside read.weight is computed": lambda m, x: F.linear(m.norm(x), m.read.weight, m.read.bias * 2),
    "the weight it meets": lambda m, x: F.linear(m.norm(x), m.read.weight * 2),
    "plain.weight cannot be given a bias": lambda m, x: F.linear(m.norm(x), m.plain.weight),
    "read.weight is also read by sum": lambda m, x: m.read(m.norm(x)) + m.read.weight.sum(),
    "read.bias is also read by matmul": lambda m, x: m.read(m.norm(x)).sum() + (x @ m.read.bias).sum(),
    "it is the weight of a layer": lambda m, x: F.linear(x, m.norm(x)[0]),
    "it is the bias of a layer": lambda m, x: F.linear(x, m.read.weight, m.norm(x)[0, 0]),
    "read by amax": lambda m, x: m.read(m.norm(x).amax(1)),
    "dropout": lambda m, x: m.read(F.dropout(m.norm(x), 1e-9, training=True)),
}


def test_what_is_left_says_why():
    def case(run):
        parts = {"norm": bn(), "other": bn(), "read": nn.Linear(C, C), "shared": nn.Linear(C, C)}
        return Through(run, **parts, plain=nn.Linear(C, C, bias=False), wide=nn.Conv2d(C, C, 3, padding=1))

    torch.manual_seed(0)
    cases = {f"case{at}": case(run) for at, run in enumerate(LEFT.values())}
    model = settled(Through(lambda m, x: tuple(getattr(m, name)(x) for name in cases), **cases)).double()
    folded = fold(model, example=TOKENS)
    rows = {row.path: row for row in folded.fold_report.rows}
    for name, why in zip(cases, LEFT, strict=True):
        row = rows[f"{name}.norm"]
        assert row.action == "left" and why in row.reason.replace(f"{name}.", "")
    assert rows["case0.other"].reason == "the model does not call it"
    for name, tensor in folded.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name


def test_backward_into_the_only_maker():
    def run(m, image):
        x = m.norm(m.embed(image).flatten(2).transpose(1, 2))
        y = m.act(m.bn(m.conv(image)))
        return x + x.tanh(), y

    parts = {
        "norm": bn,
        "embed": lambda: nn.Conv2d(3, C, 2, 2, bias=False),
        "conv": lambda: nn.Conv2d(3, C, 3, padding=1, groups=3),
        "bn": lambda: nn.BatchNorm2d(C),
        "act": nn.ReLU,
    }
    image = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0)).double()
    torch.manual_seed(0)
    model = settled(Through(run, **{name: make() for name, make in parts.items()})).double()
    folded = fold(model, example=image)
    assert [row.into for row in folded.fold_report.rows] == [["embed.weight"], ["conv.weight"]]
    for before, after in zip(model(image), folded(image), strict=True):
        assert torch.allclose(before, after, rtol=0, atol=1e-13)


def test_norms_of_heads_fold_backward_into_their_rows():
    def run(m, x):
        q, k, v = m.qkv(x).unflatten(-1, (3, 2, C // 2)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(m.q_norm(q), k, v)

    class PerHead(nn.BatchNorm1d):
        def affine_map(self):
            scale = (self.running_var + self.eps).rsqrt() * self.weight
            return scale, self.bias - self.running_mean * scale

        def forward(self, x):
            scale, shift = self.affine_map()
            return x * scale + shift

    _, _, rows = folded_pair(run, qkv=linear(3 * C, bias=False), q_norm=lambda: PerHead(C // 2))
    assert rows["q_norm"].into == ["qkv.weight"]


def test_two_norms_in_a_row():
    _, folded, rows = folded_pair(lambda m, x: m.read(m.second(m.first(x))), first=bn, second=bn, read=linear())
    assert {row.action for row in rows.values()} == {"folded"}
    no_norm_remains(folded, TOKENS)
    # Nothing can read the second here, so it follows the first into what makes their input.
    _, _, rows = folded_pair(lambda m, x: m.second(m.first(m.make(x))).tanh(), make=linear(), first=bn, second=bn)
    assert rows["first"].into == rows["second"].into == ["make.weight"]


def test_a_norm_made_of_norms_is_one():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = bn()

        def affine_map(self):
            return self.inner.affine_map()

        def forward(self, x):
            return self.inner(x)

    _, _, rows = folded_pair(lambda m, x: m.read(m.norm(x)), norm=Outer, read=linear())
    assert list(rows) == ["norm"]


def test_timm_norm_with_an_activation_keeps_it():
    from dynavit.common.torchvision_shim import ensure_torchvision

    ensure_torchvision()
    from timm.layers import BatchNormAct2d

    image = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0)).double()
    run, parts = lambda m, x: m.norm(m.conv(x)), {"conv": lambda: nn.Conv2d(3, C, 3), "norm": lambda: BatchNormAct2d(C)}
    _, folded, rows = folded_pair(run, image, **parts)
    assert rows["norm"].into == ["conv.weight"] and isinstance(folded.norm[0], nn.ReLU)


class AbsoluteLayerNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x).abs()


@pytest.mark.parametrize("kind", ["LayerNormAct", "GroupNormAct", "AbsoluteLayerNorm"])
def test_norms_that_do_more_are_left(kind):
    from dynavit.common.torchvision_shim import ensure_torchvision

    ensure_torchvision()
    from timm.layers import GroupNormAct, LayerNormAct

    make = {
        "LayerNormAct": lambda: LayerNormAct(C),
        "GroupNormAct": lambda: GroupNormAct(9, num_groups=3),  # tokens as channels
        "AbsoluteLayerNorm": lambda: AbsoluteLayerNorm(C),
    }[kind]
    _, _, rows = folded_pair(lambda m, x: m.read(m.norm(x)), norm=make, read=linear())
    assert rows["norm"].action == "left" and f"{kind} has a forward of its own" in rows["norm"].reason


# Other sizes than the example's


def to_threes(x):
    """Tokens padded to a multiple of 3, as windows are."""
    return F.pad(x, (0, 0, 0, -x.shape[1] % 3))


@pytest.mark.parametrize(
    "run",
    [lambda m, x: m.read(to_threes(m.norm(x))), lambda m, x: m.norm(to_threes(m.read(x))).tanh()],
    ids=["forward", "backward"],
)
def test_what_padding_could_break_takes_one_size(run):
    _, folded, rows = folded_pair(run, norm=bn, read=linear())
    assert rows["norm"].action == "folded" and folded.fold_report.only_shape == (9, C)
    assert "for inputs of 9x6 only" in str(folded.fold_report)
    for call in (lambda x: folded(x), lambda x: copy.deepcopy(folded)(x=x)):
        with pytest.raises(ValueError, match="folded for inputs of 9x6 and got 8x6"):
            call(TOKENS[:, :8])
    nodes = [node.target._schema.name for node in trace(folded, [TOKENS]).graph.nodes if node.op == "call_function"]
    assert set(nodes) <= {"aten::pad", "aten::linear", "aten::tanh"}


@pytest.mark.parametrize("pad", [to_threes, nn.Identity()], ids=["no shift", "no padding"])
def test_any_size_stays_allowed_otherwise(pad):
    norm = bn if isinstance(pad, nn.Module) else lambda: nn.RMSNorm(C)
    model, folded, rows = folded_pair(lambda m, x: m.read(pad(m.norm(x))), norm=norm, read=linear())
    assert rows["norm"].into == ["read.weight"]
    assert difference(model, folded, TOKENS[:, :8]) < 1e-12


def test_what_folds_follows_from_the_graph_and_not_from_values():
    """A fresh batch norm has no shift, a trained one has: both must give the same model, or files could not be read."""

    def build():
        parts = {"norm": bn(), "wide": nn.Conv2d(C, C, 3, padding=1), "second": bn(), "read": nn.Linear(C, 2, bias=False)}
        return Through(lambda m, x: m.read(m.second(_as_map(m.wide, m.norm(x)).tanh())), **parts).double()

    folded = fold(settled(build()), example=TOKENS)
    loaded = folded_structure(build().float(), {}, TOKENS.shape[1:]).double()
    loaded.load_state_dict(folded.state_dict())
    assert difference(folded, loaded, TOKENS) == 0 and folded.read.bias is not None
    assert [row.action for row in loaded.fold_report.rows] == ["left", "folded"]


@st.composite
def programs(draw):
    """Names of `PIECES`, to be run one after the other on a 3 x 3 grid of tokens."""
    return draw(st.lists(st.sampled_from(sorted(PIECES)), min_size=2, max_size=6))


PIECES = {
    "norm": lambda m, i, x: getattr(m, f"norm{i}")(x),
    "linear": lambda m, i, x: getattr(m, f"linear{i}")(x),
    "shared linear": lambda m, i, x: m.shared(x),
    "shared norm": lambda m, i, x: m.shared_norm(x),
    "gelu": lambda m, i, x: F.gelu(x),
    "residual": lambda m, i, x: x + getattr(m, f"linear{i}")(getattr(m, f"norm{i}")(x)),
    "post-norm": lambda m, i, x: getattr(m, f"norm{i}")(x + getattr(m, f"linear{i}")(x)),
    "shuffle": lambda m, i, x: x.flip(1).roll(2, 2).reshape(2, 3, 3, C).transpose(1, 2).reshape(2, 9, C),
    "heads": lambda m, i, x: x.unflatten(-1, (2, 3)).transpose(-1, -2).flatten(2),
    "1x1": lambda m, i, x: _as_map(getattr(m, f"one{i}"), x),
    "padded 3x3": lambda m, i, x: _as_map(getattr(m, f"three{i}"), x),
    "batch norm": lambda m, i, x: getattr(m, f"bn{i}")(x.transpose(1, 2)).transpose(1, 2),
    "token": lambda m, i, x: torch.cat([x.mean(1, keepdim=True), x[:, 1:]], 1),
}


def _as_map(conv, x):
    return conv(x.transpose(1, 2).unflatten(2, (3, 3))).flatten(2).transpose(1, 2)


@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_any_program_computes_the_same(names):
    torch.manual_seed(0)
    parts = {"shared": nn.Linear(C, C), "shared_norm": bn()}
    for i in range(len(names)):
        parts |= {f"norm{i}": bn(), f"linear{i}": nn.Linear(C, C, bias=bool(i % 2)), f"bn{i}": nn.BatchNorm1d(C)}
        parts |= {f"one{i}": nn.Conv2d(C, C, 1, bias=False), f"three{i}": nn.Conv2d(C, C, 3, padding=1)}

    def run(m, x):
        for i, name in enumerate(names):
            x = PIECES[name](m, i, x)
        return x

    model = settled(Through(run, **parts)).double()
    folded = fold(model, example=TOKENS)
    assert difference(model, folded, TOKENS) < 1e-12
    for at, name in enumerate(names[:-1]):
        if name == "norm" and names[at + 1] == "linear":  # what must fold, does
            assert {row.path: row.action for row in folded.fold_report.rows}[f"norm{at}"] == "folded"


# Refusals, and the report


def test_folding_twice_changes_nothing():
    parts = {"norm": bn, "read": linear(bias=False), "ln": lambda: nn.LayerNorm(C), "head": linear()}
    model, once, rows = folded_pair(lambda m, x: m.head(m.ln(m.read(m.norm(x)))), **parts)
    twice = fold(once, example=TOKENS, fresh=lambda: noise(model))  # the plan of both folds
    assert {row.action for row in twice.fold_report.rows} <= {"left"} and rows["norm"].action == "folded"
    assert once.state_dict().keys() == twice.state_dict().keys()
    assert all(torch.equal(tensor, once.state_dict()[name]) for name, tensor in twice.state_dict().items())


def test_refusals_are_errors():
    model = Through(lambda m, x: m.read(m.norm(x)), norm=bn(), read=nn.Linear(C, 2))
    with pytest.raises(ValueError, match="evaluation mode"):
        fold(model, example=torch.randn(2, 4, C))
    model.eval().norm.train()
    with pytest.raises(ValueError, match="norm is in training mode"):
        fold(model, example=torch.randn(2, 4, C))
    with pytest.raises(ValueError, match="the input size of Through is unknown"):
        fold(model.eval())
    with pytest.raises(ValueError, match="maps 6 channels and receives"):
        fold(model, example=torch.randn(2, 4, 5))
    with pytest.raises(ValueError, match="has none: leave grid out"):
        fold(model, example=torch.randn(2, 4, C), grid=(2, 2))

    def still_blending():
        raise RuntimeError("λ is 0.5")

    model.norm.affine_map = still_blending
    with pytest.raises(ValueError, match="norm cannot be folded yet: λ is 0.5"):
        fold(model, example=torch.randn(2, 4, C))


def test_masks_and_hooks_forbid():
    mask = torch.ones(2, 9, dtype=torch.bool)
    parts = {"norm": bn, "read": linear(), "hooked": bn, "other": linear()}

    def run(m, x):
        return m.read(m.norm(x, mask=mask)) + m.other(m.hooked(x))

    torch.manual_seed(0)
    model = settled(Through(run, **{name: make() for name, make in parts.items()})).double()
    model.hooked.register_forward_hook(lambda *_: None)
    rows = fold(model, example=TOKENS).fold_report.rows
    assert [row.reason for row in rows] == [
        "it is called with a mask, and sets padding to zero",
        "a forward hook is registered on it",
    ]
    _, folded, _ = folded_pair(lambda m, x: m.read(m.norm(x)), norm=bn, read=linear())
    with pytest.raises(ValueError, match="without a mask"):
        folded.norm(TOKENS, mask=mask)


def test_the_report_reads_well_and_warns_of_uneven_maps():
    torch.manual_seed(0)
    model = Through(lambda m, x: m.read(m.norm(x)), norm=bn(), read=nn.Linear(C, 2)).eval()
    model.norm.running_var[0] = 0.0
    model.norm.running_var[1:] = 1e4
    report = fold(model, example=torch.randn(2, 4, C, generator=torch.Generator().manual_seed(0))).fold_report
    assert report.rows[0].spread > 1e3 and len(report.warnings) == 1
    text = str(report)
    assert (
        "norm  BatchNorm  folded  into read.weight" in text and "1 folded, 0 partly, 0 left" in text and "warning: norm" in text
    )
    assert json.loads(json.dumps(report.to_dict()))["rows"][0]["into"] == ["read.weight"]
