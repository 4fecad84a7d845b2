"""The model that fits a data set, and configurations on their way to files and back."""

from pathlib import Path

import pytest
import torch

from dynavit.common.registry import UnknownNameError
from dynavit.data.dataset import DataSet
from dynavit.runs.assemble import build_model, model_call
from dynavit.runs.config import TrainConfig, from_plain, to_plain


def data(side, channels=3, classes=7):
    return DataSet("x", {}, [str(k) for k in range(classes)], (side, side), (0.5,) * channels, (0.5,) * channels)


@pytest.mark.parametrize(
    ("model", "side", "sizes"),
    [
        ("vit_tiny_star", 32, {"img_size": [32, 32], "patch_size": 4}),  # made for 224 pixels: patches shrink to 8x8 tokens
        ("vit_tiny_star", 224, {"img_size": [224, 224]}),
        ("vit_micro", 8, {"img_size": [8, 8]}),  # made for this size
        ("deit_tiny_patch16_224", 32, {"img_size": [32, 32], "patch_size": 4}),
        ("resnet18", 32, {}),  # takes any size
    ],
)
def test_the_model_fits_the_images(model, side, sizes):
    call = model_call(TrainConfig(model=model), data(side))
    assert call == {"name": model, "num_classes": 7, "in_chans": 3, **sizes}


def test_options_win_over_what_would_fit():
    call = model_call(TrainConfig(model="vit_tiny_star", model_options={"patch_size": 8, "depth": 1}), data(32))
    assert call["patch_size"] == 8 and call["depth"] == 1


def test_a_model_takes_the_data_and_its_seed_fixes_its_weights():
    config = TrainConfig(norm="dtn", seed=3, model_options={"depth": 1})
    model, call = build_model(config, data(8, channels=1))
    torch.randn(5)
    again, _ = build_model(config, data(8, channels=1))
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 7)
    assert call["norm"] == "dtn"
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_a_configuration_survives_a_file(tmp_path):
    config = TrainConfig(data_dir=Path("x/y"), lr=5e-4, norm_options={"init": "local"})
    config.optim.betas = (0.9, 0.95)
    config.loading.train_root = Path("a b")
    import yaml

    plain = yaml.safe_load(yaml.safe_dump(to_plain(config)))
    assert from_plain(TrainConfig, plain) == config


def test_numbers_that_yaml_reads_as_words_are_numbers():
    assert from_plain(TrainConfig, {"lr": "5e-4"}).lr == 5e-4


@pytest.mark.parametrize(("wrong", "near"), [({"lrr": 1}, "'lr'"), ({"optim": {"clp": 1}}, "'optim.clip'")])
def test_unknown_options_name_the_nearest(wrong, near):
    with pytest.raises(UnknownNameError, match=near):
        from_plain(TrainConfig, wrong)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("epochs", {"epochs": 0}),
        ("batch_size", {"batch_size": 0}),
        ("lr", {"lr": -1.0}),
        ("optim.accumulate", {"optim": {"accumulate": 0}}),
        ("engine.log_every", {"engine": {"log_every": 0}}),
    ],
)
def test_impossible_numbers_are_refused(name, wrong):
    with pytest.raises(ValueError, match=rf"{name}=(0|0\.0|-1\.0): a (whole )?number (greater than 0|at least 1)"):
        from_plain(TrainConfig, wrong)


@pytest.mark.parametrize(
    ("wrong", "near"), [({"engine": {"precision": "float16"}}, "fp16"), ({"augment": {"recipe": "ligth"}}, "light")]
)
def test_words_that_are_no_choice_name_the_nearest(wrong, near):
    with pytest.raises(UnknownNameError, match=near):
        from_plain(TrainConfig, wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 10**8}, "depth=100000000: a number at least 0 and at most 1000"),
        ({"depth": -1}, "depth=-1: a number at least 0"),
        ({"depth": float("nan")}, "depth=nan: a number"),
        ({"embed_dim": 10**9}, "embed_dim=1000000000: a number at least"),
        (
            {"embed_dim": 2**20, "heads": 1},
            "weights of vit_micro alone would take .* GB, and .* GB are free; look at .*embed_dim",
        ),
        ({"num_classes": 2**24, "embed_dim": 2**16, "heads": 1}, "GB are free"),
        ({"depth": "x"}, r"vit_micro cannot be built with these options \(TypeError"),
        ({"embed_dim": [64]}, r"vit_micro cannot be built with these options \(TypeError"),
        ({"norm_options": {"window": [1, 2]}}, "window"),
    ],
)
def test_models_that_cannot_be(options, message):
    """Before anything is allocated; the same for stored options, which are somebody else's."""
    from dynavit.models.stored_call import build_stored

    with pytest.raises(ValueError, match=message):
        build_model(TrainConfig(model_options=options), data(8))
    with pytest.raises(ValueError, match=message):
        build_stored({"name": "vit_micro", **options})


def test_models_of_timm_that_cannot_be():
    from dynavit.models.stored_call import build_stored

    for options in ({"embed_dim": 2**20, "num_heads": 1}, {"depth": 10**8}, {"embed_dim": None, "num_heads": "x"}):
        with pytest.raises(ValueError, match=r"GB are free|at most 1000|cannot be built"):
            build_stored({"name": "vit_tiny_patch16_224", "norm": "dtn", **options})
