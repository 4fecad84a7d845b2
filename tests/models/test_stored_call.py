"""A stored call builds the same model again, and neither fetches nor opens anything."""

import pytest
import timm
import torch

import dynavit
from dynavit.models.stored_call import WEIGHT_SOURCES, build_stored, stored_call

SMALL = {"name": "vit_tiny_patch16_224", "img_size": 32, "depth": 1, "embed_dim": 24, "num_heads": 3, "num_classes": 5}


@pytest.fixture
def sources(monkeypatch):
    """Whatever timm would fetch or open."""
    asked = []
    for place in ("load_pretrained", "load_checkpoint", "load_model_config_from_hf", "load_model_config_from_path"):
        for module in (timm.models._builder, timm.models._factory):
            if hasattr(module, place):
                monkeypatch.setattr(module, place, lambda *args, _place=place, **options: asked.append(_place))
    return asked


FOREIGN = [
    {"pretrained": True},
    {"pretrained": True, "pretrained_cfg_overlay": {"url": "https://example.com/x.pth"}},
    {"pretrained": True, "pretrained_cfg": {"file": "/etc/passwd"}},
    {"checkpoint_path": "/etc/passwd", "cache_dir": "/tmp"},
]


@pytest.mark.parametrize("foreign", FOREIGN, ids=lambda foreign: "+".join(foreign))
def test_weights_of_elsewhere_are_not_asked_for(sources, foreign):
    model = build_stored({**SMALL, "norm": "dtn", **foreign})
    assert isinstance(model.blocks[0].norm1, dynavit.DynamicTokenNorm)
    assert not sources
    if "pretrained" in foreign:
        timm.create_model(SMALL["name"], **foreign)
        assert sources == ["load_pretrained"]  # the fixture sees it


@pytest.mark.parametrize("name", ["hf-hub:timm/vit", "hf_hub:timm/vit", "local-dir:/x", "HF-HUB:timm/vit", "timm/vit", "/x"])
def test_models_of_elsewhere_are_refused(sources, name):
    with pytest.raises(ValueError, match="name its architecture, and take weights from there with --init-from"):
        build_stored({"name": name})
    assert not sources


@pytest.mark.parametrize("option", ["weights_url", "pretrained_custom_load", "kwargs", "model_cfg"])
def test_an_option_that_no_class_of_the_model_has(option):
    with pytest.raises(ValueError, match=f"unknown option of model 'vit_tiny_patch16_224' '{option}'"):
        stored_call({**SMALL, option: "x"})


def test_options_of_a_model_are_kept():
    swin = {"name": "swin_tiny_patch4_window7_224", "window_size": 4, "depths": [1, 1], "where": "blocks", "drop_rate": 0.1}
    for call in (SMALL, swin, {"name": "fastvit_t8", "num_classes": 3}, {"name": "levit_128s", "drop_path_rate": 0.1}):
        assert stored_call(call) == call
    assert not WEIGHT_SOURCES & stored_call({"name": "vit_micro", **dict.fromkeys(WEIGHT_SOURCES)}).keys()


def test_a_name_is_a_text():
    for name in (None, 3, ["vit_micro"], {}):
        with pytest.raises(ValueError, match="the model's name is a text"):
            stored_call({"name": name})
    with pytest.raises(ValueError, match="Did you mean 'vit_micro'"):
        build_stored({"name": "vit_mikro"})


def test_the_same_model_is_built():
    torch.manual_seed(0)
    model = build_stored(SMALL)
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 5)
