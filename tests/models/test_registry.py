"""Names to models."""

import json
import subprocess
import sys

import pytest
import timm
import torch
from torch import nn

import dynavit
from dynavit.cli.list import model_rows
from dynavit.cli.main import main
from dynavit.models import registry
from dynavit.models.layers import norm_everywhere
from dynavit.models.timm_entries import TIMM_NAMES
from dynavit.norms import LayerNorm

OWN = [name for name in dynavit.list_models() if registry.home_of(name) == "dynavit"]


def test_the_list_is_sorted_and_can_be_narrowed():
    names = dynavit.list_models()
    assert names == sorted(set(names))
    assert {"vit_small_star", "test_vit", "sequence_transformer", "swin_tiny_patch4_window7_224"} <= set(names)
    assert dynavit.list_models("vit_*_star") == ["vit_base_star", "vit_small_star", "vit_tiny_star"]
    assert dynavit.list_models("nothing*") == []


def test_a_shared_norm_is_replaced_in_all_its_places():
    shared = LayerNorm(4)
    model = nn.ModuleList([shared, nn.Sequential(shared, nn.Linear(4, 4)), LayerNorm(4)])
    norm_everywhere(model, "bn")
    assert model[0] is model[1][0] is not model[2]
    assert not any(isinstance(module, LayerNorm) for module in model.modules())


def test_what_timm_passes_along_is_dropped():
    with torch.device("meta"):
        model = timm.create_model(
            "vit_tiny", pretrained_cfg={"mean": (0, 0, 0)}, pretrained_cfg_overlay={}, cache_dir="x", num_classes=3
        )
    assert model.head.out_features == 3
    assert model.pretrained_cfg["architecture"] == model.default_cfg["architecture"] == "vit_tiny"


@pytest.mark.parametrize("create", [timm.create_model, dynavit.create_model])
def test_pretrained_weights_do_not_exist(create):
    with pytest.raises(ValueError, match="vit_tiny: no weights are published"):
        create("vit_tiny", pretrained=True)


@pytest.mark.slow
def test_timm_is_filled_by_importing_the_room():
    code = "import dynavit.models, timm; print(timm.create_model('vit_tiny_star', depth=1, norm='rms').blocks[0].norm1)"
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("RMSNorm(192")


def test_unknown_names_get_the_nearest():
    with pytest.raises(ValueError, match="unknown model 'vit_smal_star'. Did you mean 'vit_small_star'"):
        dynavit.create_model("vit_smal_star")
    with pytest.raises(ValueError, match="Did you mean 'swinv2_tiny_window8_256'"):  # of timm, and not in our list
        dynavit.create_model("swinv2_tiny_windw8_256")
    with pytest.raises(ValueError, match="unknown model"):
        registry.describe_model("swinv2_tiny_window8_256")


def test_any_name_of_timm_works():
    assert type(dynavit.create_model("resnet10t", num_classes=2)).__module__.startswith("timm.")
    assert dynavit.create_model("vit_tiny_patch16_224.augreg_in21k", num_classes=2).num_classes == 2
    with pytest.raises(ValueError, match="norm_options=.* without a norm"):
        dynavit.create_model("resnet10t", norm_options={"eps": 1e-3})


def test_a_name_is_registered_once():
    def vit_tiny():
        pass

    with pytest.raises(ValueError, match="'vit_tiny' is registered already, by dynavit"):
        registry.register_model(vit_tiny)


def test_listed_names_of_timm_exist_and_are_not_ours():
    for name in TIMM_NAMES:
        assert timm.is_model(name) and registry.home_of(name) == "timm"


def test_list_models_on_the_command_line(capsys):
    assert main(["list", "models", "--pattern", "vit_*_star"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (small,) = [line for line in lines if line.startswith("vit_small_star")]
    assert small.split()[-2:] == ["dynavit", "27,776,872"]
    assert main(["list", "models", "--json", "--pattern", "pvt_v2_b0"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {"name": "pvt_v2_b0", "description": "PVTv2-B0, the smallest", "home": "timm", "parameters": 3_666_760}
    assert [row.name for row in model_rows("test_*")] == dynavit.list_models("test_*")


@pytest.mark.parametrize("name", ["vit_micro", "pvt_tiny", "t2t_vit_7", "dvt_vit_digits", "deit_tiny_patch16_224"])
def test_a_norm_that_folds_takes_every_place(name):
    """One LayerNorm that stays would be all that is left to compute after folding."""
    model = dynavit.create_model(name, norm="zscore", norm_options={"alpha": 0.5})
    norms = [module for module in model.modules() if "Norm" in type(module).__name__]
    assert {(type(norm).__name__, norm.alpha) for norm in norms} == {("ZScoreNorm", 0.5)}


def test_but_not_where_the_places_are_given():
    model = dynavit.create_model("vit_micro", norm="bn", norm_blocks=2)
    assert {type(module).__name__ for module in model.modules() if "Norm" in type(module).__name__} == {
        "BatchNorm",
        "LayerNorm",
    }
