"""Models from a user's own file: built, listed and trained by name like ours."""

import warnings

import pytest
import timm
import torch
from torch import nn

import dynavit
from dynavit.common.plugins import load_plugin
from dynavit.common.registry import guests_used
from dynavit.models import registry
from dynavit.norms import DynamicTokenNorm, LayerNorm, RMSNorm

GUEST = '''
"""A file outside the package."""
from torch import nn
import dynavit
from dynavit.models.vit import VisionTransformer


class GuestNet(nn.Module):
    """nn.LayerNorm inside; knows nothing of our norms."""

    def __init__(self, num_classes=10, in_chans=3, img_size=16, depth=2):
        super().__init__()
        self.embed = nn.Conv2d(in_chans, 32, 4, 4)
        layers = [nn.TransformerEncoderLayer(32, 4, 48, 0.0, batch_first=True, norm_first=True) for _ in range(depth)]
        self.blocks = nn.ModuleList(layers)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, num_classes)

    def forward(self, x):
        x = self.embed(x).flatten(2).mT
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class GuestVit(VisionTransformer):
    def __init__(self, extra=0, **kwargs):
        super().__init__(**kwargs)
        self.extra = extra


@dynavit.register_model
def guest_net(**kwargs) -> GuestNet:
    """A net of a guest.

    More about it."""
    return GuestNet(**kwargs)


@dynavit.register_model(task="rotation")
def guest_plain(num_classes=10, in_chans=3):
    return GuestNet(num_classes, in_chans)


@dynavit.register_model()
def guest_any(**kwargs):
    return GuestNet(**kwargs)


@dynavit.register_model
def guest_vit(**kwargs) -> GuestVit:
    return GuestVit(**{"img_size": 16, "patch_size": 4, "embed_dim": 32, "heads": 4, "depth": 3, "num_classes": 10, **kwargs})


@dynavit.register_model
def guest_trained(pretrained=False, num_classes=10):
    model = GuestNet(num_classes)
    model.trained = pretrained
    return model
'''
NAMES = ["guest_any", "guest_net", "guest_plain", "guest_trained", "guest_vit"]


@pytest.fixture
def guests(tmp_path, no_guest_stays):
    file = tmp_path / "my_models.py"
    file.write_text(GUEST)
    load_plugin(file)
    return file


def norms(model):
    return [type(module) for module in model.modules() if isinstance(module, dynavit.Norm | nn.LayerNorm)]


def images(size=16):
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))


def test_they_are_listed_described_and_know_their_file(guests):
    assert dynavit.list_models("guest_*") == NAMES
    assert registry.describe_model("guest_net") == "A net of a guest."
    assert registry.describe_model("guest_plain") == ""
    assert registry.home_of("guest_net") == str(guests)
    assert registry.MODELS.guest("guest_net").file == str(guests)


def test_a_task_may_be_declared(guests):
    assert registry.task_of("guest_plain") == "rotation"
    for name in ("guest_net", "guest_any", "vit_tiny", "deit_tiny_patch16_224", "no_such_model"):
        assert registry.task_of(name) is None
    for name in dynavit.list_models("dvt_*"):
        assert registry.task_of(name) == "early_exit"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("create", [dynavit.create_model, timm.create_model])
def test_they_are_built_by_name(guests, name, create):
    with guests_used() as used:
        model = create(name, num_classes=4)
    assert model(images()).shape == (2, 4)
    assert (("model", name) in used) == (create is dynavit.create_model)


@pytest.mark.parametrize("name", ["guest_net", "guest_any", "guest_plain"])
@pytest.mark.parametrize("create", [dynavit.create_model, timm.create_model])
def test_without_an_option_norm_the_norms_are_swapped(guests, name, create):
    model = create(name, norm="dtn", norm_options={"radius": 2})
    assert norms(model) == [DynamicTokenNorm] * 4 + [nn.LayerNorm]
    assert model.blocks[0].norm1.radius == 2 and model.swap_plan.start == "fresh"
    assert model(images()).shape == (2, 10)
    one = create(name, norm="rms", where="blocks.1.*")
    assert norms(one) == [nn.LayerNorm] * 2 + [RMSNorm] * 2 + [nn.LayerNorm]


def test_the_image_size_of_the_options_is_that_of_the_swap(guests):
    model = dynavit.create_model("guest_net", norm="dtn", img_size=24)
    assert model.swap_plan.input_size == (3, 24, 24)
    assert model(images(24)).shape == (2, 10)


def test_trained_models_start_near_their_own(guests):
    assert dynavit.create_model("guest_trained", pretrained=True).trained
    model = dynavit.create_model("guest_trained", norm="dtn", pretrained=True)
    assert model.swap_plan.start == "near"
    with pytest.raises(ValueError, match="guest_net: no weights are published"):
        dynavit.create_model("guest_net", pretrained=True)


def test_with_an_option_norm_the_model_places_them(guests):
    model = dynavit.create_model("guest_vit", norm="dtn", norm_blocks=1, extra=5)
    assert norms(model) == [DynamicTokenNorm] * 2 + [LayerNorm] * 5 and model.extra == 5
    assert not hasattr(model, "swap_plan")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("guest_net", {"depht": 3}, "unknown option of model 'guest_net' 'depht'. Did you mean 'depth'"),
        ("guest_plain", {"img_size": 32}, "unknown option of model 'guest_plain' 'img_size'"),
        ("guest_vit", {"norm_block": 2}, "unknown option of model 'guest_vit' 'norm_block'. Did you mean 'norm_blocks'"),
        ("guest_net", {"norm": "dtm"}, "unknown norm 'dtm'"),
        ("guest_net", {"where": "blocks.0.*"}, "guest_net: .* without a norm they could belong to"),
        ("guest_net", {"features_only": True}, "guest_net: it has no feature maps"),
        ("guest_nett", {}, "unknown model 'guest_nett'. Did you mean 'guest_net'"),
    ],
)
def test_wrong_options(guests, name, options, message):
    with pytest.raises(ValueError, match=message):
        dynavit.create_model(name, **options)


def test_features_only_for_a_guest_that_has_them(guests):
    model = timm.create_model("guest_vit", features_only=True, out_indices=(0,))
    assert [tuple(map_.shape) for map_ in model(images())] == [(2, 32, 4, 4)]


def test_a_cell_that_runs_twice_replaces_the_model(no_guest_stays):
    def define(width):
        @dynavit.register_model
        def guest_cell(**kwargs):
            return nn.Linear(width, 2)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        define(3)
        define(5)
    for create in (dynavit.create_model, timm.create_model):
        assert create("guest_cell").in_features == 5


def test_what_cannot_be_registered_or_built(no_guest_stays):
    def resnet18():
        return nn.Identity()

    with pytest.raises(ValueError, match=r"'resnet18' is one of timm \(timm.models.resnet\); choose another name"):
        dynavit.register_model(resnet18)
    assert "resnet18" not in registry.MODELS
    with pytest.raises(ValueError, match="stands above a function"):
        dynavit.register_model("mine")

    @dynavit.register_model
    def guest_nothing():
        return "a word"

    with pytest.raises(ValueError, match="'guest_nothing': its function returned str"):
        dynavit.create_model("guest_nothing")


def test_an_installed_package_may_offer_a_bare_function(monkeypatch, no_guest_stays):
    class Point:
        name = "guest_offered"

        @staticmethod
        def load():
            return offered

    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Point] if group == "dynavit.models" else [])
    assert "guest_offered" in dynavit.list_models()
    assert registry.task_of("guest_offered") is None
    model = dynavit.create_model("guest_offered", norm="rms", num_classes=3)
    assert norms(model) == [RMSNorm] * 2
    with pytest.raises(ValueError, match="unknown option of model 'guest_offered' 'classes'"):
        dynavit.create_model("guest_offered", classes=3)


def offered(num_classes=2):
    return nn.TransformerEncoderLayer(16, 2, num_classes, batch_first=True)
