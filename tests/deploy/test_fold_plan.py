"""A fold as data: what it says, and which plans are refused. That every fold can be done again is checked where it is made."""

import copy
import json

import pytest
import torch
from torch import nn

import dynavit
from deploy.fold_models import Through, fold, settled
from dynavit.deploy.fold.layers import build_layer, describe_layer
from dynavit.deploy.fold.plan import FoldPlan, apply_fold_plan
from dynavit.deploy.fold.steps import KINDS

C = 6
TOKENS = torch.randn(2, 9, C, generator=torch.Generator().manual_seed(1))


class Doubling(nn.Module):
    """Fuses into a class of its own, which a plan cannot describe."""

    def __init__(self, times=1):
        super().__init__()
        self.times = times
        self.scale = nn.Parameter(torch.randn(C))

    def forward(self, x):
        return self.times * self.scale * x

    def fuse(self):
        fused = Doubled(self.times)
        fused.scale.data.copy_(self.scale * self.times)
        return fused


class Doubled(Doubling):
    fuse = None

    def forward(self, x):
        return self.scale * x


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(C, C), nn.Linear(C, C)

    def forward(self, x):
        return self.first(x) + self.second(x)

    def fuse(self):
        both = nn.Linear(C, C)
        both.weight = nn.Parameter(self.first.weight + self.second.weight)
        both.bias = nn.Parameter(self.first.bias + self.second.bias)
        return both


def test_a_plan_says_what_becomes_of_each_module():
    def run(m, x):
        x = m.doubling(m.branches(x))
        x = m.dtn(m.write(m.bn(x))) + m.act(x)
        return m.head(m.ln(m.last(x)))

    parts = {"branches": Branches(), "doubling": Doubling(2), "bn": dynavit.create_norm("bn", C), "act": nn.ReLU()}
    parts |= {"write": nn.Linear(C, C, bias=False), "dtn": dynavit.create_norm("dtn", C, heads=2)}
    parts |= {"last": nn.Linear(C, C), "ln": nn.LayerNorm(C), "head": nn.Linear(C, 4, bias=False)}
    model = settled(Through(run, **parts))
    model.again = model.bn  # a second path to the same module
    plan = fold(model, example=TOKENS, grid=(3, 3)).fold_plan
    assert plan.to_dict() == {
        "version": 1,
        "model": "Through",
        "steps": [
            {"kind": "fuse", "path": "branches", "into": {"type": "Linear", "in_features": C, "out_features": C, "bias": True}},
            {"kind": "own_fuse", "path": "doubling", "into": "Doubled"},
            {"kind": "freeze", "paths": ["dtn"], "grid": [3, 3], "prefix": 0},
            {"kind": "add_bias", "path": "write"},
            {"kind": "add_bias", "path": "head"},
            {"kind": "fold_away", "paths": ["bn", "again"], "keep": []},
            {"kind": "drop_affine", "path": "ln"},
            {"kind": "drop_mean", "paths": ["ln"]},
        ],
    }
    padded = Through(
        lambda m, x: m.read(nn.functional.pad(m.norm(x), (0, 0, 0, -x.shape[1] % 3))), norm=parts["bn"], read=parts["last"]
    )
    last = fold(padded.eval(), example=TOKENS).fold_plan.to_dict()["steps"][-1]
    assert last == {"kind": "one_size", "shape": [9, C]}
    assert {step["kind"] for step in [*plan.to_dict()["steps"], last]} == set(KINDS)


@pytest.mark.parametrize("name", ["prepbn", "ldfn"])
def test_a_fresh_annealed_norm_is_folded_away_by_a_plan(name):
    """It is LayerNorm at its beginning, so `fold` would refuse it; a plan does not ask."""

    def build():
        return Through(lambda m, x: m.read(m.norm(x)), norm=dynavit.create_norm(name, C), read=nn.Linear(C, C)).eval()

    model = build()
    model.norm.set_progress(1, 1)
    assert fold(model, example=TOKENS, fresh=build).fold_report.count("folded") == 1


def test_layers_as_data():
    layers = [nn.Linear(3, 4, bias=False), nn.Conv1d(4, 6, 3, 2, 1, groups=2), nn.Conv2d(2, 2, (3, 1), padding="same")]
    layers += [nn.Conv3d(2, 4, 2, dilation=2, bias=False), nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), nn.Identity()]
    for layer in layers:
        again = build_layer(json.loads(json.dumps(describe_layer(layer))))
        assert type(again) is type(layer) and str(again) == str(layer)
        assert [p.shape for p in again.parameters()] == [p.shape for p in layer.parameters()]
    hooked = nn.Linear(2, 2)
    hooked.register_forward_hook(lambda *_: None)
    for other in (hooked, nn.ReLU(), nn.Bilinear(2, 2, 2), type("Linear", (nn.Linear,), {})(2, 2)):
        assert describe_layer(other) is None


LINEAR = {"type": "Linear", "in_features": 2, "out_features": 2, "bias": True}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "a fold plan of version 2 was given; this dynavit reads version 1"),
        ({"code": "x"}, "a fold plan has version, model and a list of steps; this one has code, model, steps, version"),
        ({"steps": {}}, "a list of steps"),
        (
            {"steps": [{"kind": "run_code", "path": "x"}]},
            "step 1 of the fold plan is of kind 'run_code'; this dynavit knows fold_away",
        ),
        ({"steps": [{"kind": []}]}, r"step 1 of the fold plan is of kind \[\]"),
        ({"steps": ["fuse"]}, "step 1 of the fold plan is no step but 'fuse'"),
        ({"steps": [{"kind": "add_bias"}]}, r"step 1 of the fold plan \(add_bias\) has path; look at path"),
        ({"steps": [{"kind": "add_bias", "path": "x", "bias": 1}]}, "look at bias"),
        ({"steps": [{"kind": "add_bias", "path": 1}]}, "path cannot be 1"),
        ({"steps": [{"kind": "fold_away", "paths": "norm"}]}, "paths cannot be 'norm'"),
        ({"steps": [{"kind": "fold_away", "paths": ["norm", 1]}]}, "paths cannot be"),
        ({"steps": [{"kind": "one_size", "shape": [True]}]}, r"shape cannot be \[True\]"),
        ({"steps": [{"kind": "freeze", "paths": ["norm"], "grid": [], "prefix": 0}]}, r"grid cannot be \[\]"),
        ({"steps": [{"kind": "fuse", "path": "x", "into": "Linear"}]}, "into cannot be 'Linear'"),
    ],
)
def test_a_damaged_plan_is_refused(change, message):
    plain = {"version": 1, "model": "Through", "steps": []}
    assert FoldPlan.from_json(json.dumps(plain)).steps == []
    with pytest.raises(ValueError, match=message):
        FoldPlan.from_json(plain | change)


def test_what_is_no_plan_at_all_is_refused():
    for text in ("[]", "null", "{}"):
        with pytest.raises(ValueError, match="a fold plan of version None was given"):
            FoldPlan.from_json(text)
    with pytest.raises(ValueError, match="Expecting value"):
        FoldPlan.from_json("no JSON")


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"kind": "fold_away", "paths": ["absent"]}, "Through has no module absent"),
        ({"kind": "fold_away", "paths": ["forward"]}, "Through has no module forward"),
        ({"kind": "fold_away", "paths": []}, "it names no module"),
        ({"kind": "fold_away", "paths": ["bn", "dtn"]}, "bn and dtn are not one module"),
        ({"kind": "fold_away", "paths": ["ln"]}, "ln is a LayerNorm, and no norm that is an affine map at evaluation"),
        ({"kind": "fold_away", "paths": ["bn"], "keep": ["act"]}, "BatchNorm has no module act"),
        ({"kind": "drop_affine", "path": "read"}, "read is a Linear, and no norm with a weight or bias"),
        ({"kind": "drop_affine", "path": "bare"}, "bare is a LayerNorm, and no norm with a weight or bias"),
        ({"kind": "drop_mean", "paths": ["ln"]}, "ln is a LayerNorm, and no LayerNorm without weight and bias"),
        ({"kind": "freeze", "paths": ["bn"], "grid": [2, 2], "prefix": 0}, "bn is a BatchNorm, and no DynamicTokenNorm"),
        ({"kind": "freeze", "paths": ["dtn"], "grid": [4], "prefix": 0}, r"dtn takes no grid of \(4,\) with 0 tokens in front"),
        ({"kind": "freeze", "paths": ["dtn"], "grid": [2, 0], "prefix": 0}, "dtn takes no grid"),
        ({"kind": "freeze", "paths": ["dtn"], "grid": [2, 2], "prefix": -1}, "dtn takes no grid"),
        ({"kind": "add_bias", "path": "read"}, "read is a Linear, and no linear layer or convolution without a bias"),
        ({"kind": "add_bias", "path": "ln"}, "ln is a LayerNorm, and no linear layer"),
        ({"kind": "own_fuse", "path": "read", "into": "Linear"}, r"read is a Linear, which has no method fuse\(\)"),
        (
            {"kind": "own_fuse", "path": "doubling", "into": "Linear"},
            r"fuse\(\) of doubling returns a Doubled, where the plan has Linear",
        ),
        ({"kind": "fuse", "path": "absent", "into": LINEAR}, "Through has no module absent"),
        ({"kind": "fuse", "path": "read", "into": {}}, "None is no layer that a fold plan may build; known are Linear, Conv1d"),
        ({"kind": "fuse", "path": "read", "into": LINEAR | {"type": "LSTM"}}, "'LSTM' is no layer that a fold plan may build"),
        ({"kind": "fuse", "path": "read", "into": LINEAR | {"device": "meta"}}, "look at device"),
        ({"kind": "fuse", "path": "read", "into": {"type": "Linear", "bias": True}}, "look at in_features, out_features"),
        ({"kind": "fuse", "path": "read", "into": LINEAR | {"in_features": "2"}}, "torch cannot build a Linear of"),
    ],
)
def test_a_plan_for_another_model_is_refused(step, message):
    parts = {
        "bn": dynavit.create_norm("bn", C),
        "dtn": dynavit.create_norm("dtn", C),
        "ln": nn.LayerNorm(C),
        "doubling": Doubling(),
    }
    model = Through(None, **parts, bare=nn.LayerNorm(C, elementwise_affine=False), read=nn.Linear(C, C))
    first = {"kind": "one_size", "shape": [9, C]}
    plan = FoldPlan.from_json({"version": 1, "model": "Other", "steps": [first, step]})
    start = rf"step 2 \({step['kind']}\) of the fold plan, made for Other, does not fit this Through: "
    with pytest.raises(ValueError, match=f"{start}.*{message}"):
        apply_fold_plan(model, plan)


def test_a_plan_is_applied_once():
    model = settled(Through(lambda m, x: m.read(m.norm(x)), norm=dynavit.create_norm("bn", C), read=nn.Linear(C, C)))
    folded = fold(model, example=TOKENS)
    with pytest.raises(ValueError, match="norm is a Folded, and no norm that is an affine map"):
        apply_fold_plan(copy.deepcopy(folded), folded.fold_plan)
