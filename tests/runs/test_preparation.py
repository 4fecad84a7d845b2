"""Images are prepared as the initial weights know them: in training, evaluation, prediction and bundles."""

import json
from dataclasses import replace

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import dynavit
from data.image_files import write_folder
from dynavit import TrainConfig, evaluate_run, train_run
from dynavit.common.data import LoaderOptions
from dynavit.data.config import AugmentConfig, DataConfig
from dynavit.data.configured import prepared_for_weights
from dynavit.data.digits import open_digits
from dynavit.data.open import open_data
from dynavit.data.preprocess import preprocess
from dynavit.deploy.bundle.prepare import prepare
from dynavit.runs.assemble import open_training_data
from dynavit.runs.preparation import known_preparation, timm_preparation
from dynavit.runs.subject import Subject
from runs.notes import Notes

NAME = "vit_tiny_patch16_224"  # its weights at timm are made with mean and std 0.5, and see 0.9 of a photograph
SMALL = {"embed_dim": 12, "depth": 1, "num_heads": 2, "patch_size": 56}
HALF = [0.5, 0.5, 0.5]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    counts = {"train": {"cat": 2, "dog": 2}, "val": {"cat": 1, "dog": 1}}
    return write_folder(tmp_path_factory.mktemp("photos"), counts)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A file of weights of a model of timm, which says nothing about itself."""
    path = tmp_path_factory.mktemp("weights") / "vit.safetensors"
    save_file(dynavit.create_model(NAME, **SMALL, num_classes=7).state_dict(), path)
    return str(path)


def config(folder, init_from, **loading):
    return TrainConfig(
        model=NAME,
        data="folder",
        data_dir=folder,
        epochs=1,
        batch_size=4,
        init_from=init_from,
        model_options=dict(SMALL),
        loading=DataConfig(workers=0, **loading),
        augment=AugmentConfig(recipe="none"),
    )


@pytest.fixture(scope="module")
def tuned(folder, weights, tmp_path_factory):
    """A run, and what it told."""
    out, notes = tmp_path_factory.mktemp("runs") / "tuned", Notes()
    train_run(config(folder, weights), out, progress=notes)
    return out, notes.notes


def test_the_facts_are_those_of_timm():
    import timm

    for name in ("deit_tiny_patch16_224", NAME, "vit_base_patch16_384", "levit_128s", "vit_base_patch32_224.sam_in1k"):
        theirs = timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
        ours = timm_preparation(name)
        assert ours.pop("image_size") == list(theirs["input_size"][1:])
        assert ours == {key: theirs[key] for key in ours}
        assert {"mean", "std", "crop_pct", "interpolation"} <= ours.keys()
    assert timm_preparation("no_such_model") == {} == timm_preparation("vit_tiny_patch16_224.no_such_tag")


def test_who_knows(tuned, weights):
    assert known_preparation("timm:vit_base_patch16_384", "vit_tiny")["image_size"] == [384, 384]
    assert known_preparation(weights, NAME) == timm_preparation(NAME)
    assert known_preparation(weights, "vit_micro") == {}, "nothing tells how the weights of our own model were made"
    assert known_preparation(str(tuned[0]), "vit_micro")["mean"] == HALF


def test_the_card_and_a_note_tell(tuned):
    out, notes = tuned
    card = json.loads((out / "model.json").read_text())["preprocess"]
    assert card == {
        "kind": "files",
        "image_size": [224, 224],
        "crop_pct": 0.9,
        "interpolation": "bicubic",
        "mean": HALF,
        "std": HALF,
    }
    told = next(note for note in notes if note.startswith("images are prepared as for"))
    assert "0.9 of the shorter side; bicubic; mean 0.5, 0.5, 0.5; std 0.5, 0.5, 0.5 (--loading.image_size" in told


def test_training_evaluation_prediction_and_bundles_see_the_same(tuned, folder, tmp_path):
    out, _ = tuned
    card = json.loads((out / "model.json").read_text())["preprocess"]
    photo = folder / "val" / "cat" / "0.png"
    expected = preprocess(photo, card)
    assert torch.equal(torch.from_numpy(prepare(photo, card)), expected)
    opened = Subject.of(out).open()
    ((batch,),) = opened.loader("val", 2, alone=True).epoch()
    assert torch.equal(batch.inputs[0], expected)
    data = open_training_data(config(folder, None), resumed=out)
    how = LoaderOptions(train=True, batch_size=4, augment=AugmentConfig(recipe="none"), config=DataConfig(workers=0))
    ((batch,),) = data.loader("train", how).epoch()
    trained = preprocess(data.splits["train"].paths[int(batch.index[0])], card)
    assert torch.equal(batch.inputs[0], trained)


def test_the_result_at_the_end_is_the_one_of_eval(tuned):
    out, _ = tuned
    stored = json.loads((out / "eval" / "val.json").read_text())
    assert evaluate_run(out)["loss"] == stored["loss"]


def test_a_resumed_run_needs_its_source_no_more(tuned, folder):
    out, _ = tuned
    again = train_run(config(folder, "timm:gone"), out, resume=True)
    assert again.nothing_to_do
    assert json.loads((out / "model.json").read_text())["preprocess"]["mean"] == HALF
    data = open_training_data(config(folder, "timm:gone"), resumed=out)
    assert (data.mean, data.crop_pct) == ((0.5, 0.5, 0.5), 0.9)


def test_options_come_first(folder, weights):
    asked = {"mean": [0.1, 0.2, 0.3], "crop_pct": 0.8, "interpolation": "bilinear", "image_size": 112}
    data = open_training_data(config(folder, weights, **asked))
    assert (data.mean, data.std) == ((0.1, 0.2, 0.3), (0.5, 0.5, 0.5))
    assert (data.crop_pct, data.interpolation, data.image_size) == (0.8, "bilinear", (112, 112))
    plain = open_training_data(config(folder, None, **asked))
    assert plain.mean == (0.1, 0.2, 0.3) and plain.std == (0.229, 0.224, 0.225) and plain.crop_pct == 0.8


def test_larger_weights_bring_their_size(folder):
    assert open_training_data(config(folder, "timm:vit_base_patch16_384")).image_size == (384, 384)
    assert open_training_data(config(folder, "timm:vit_base_patch16_384", image_size=224)).image_size == (224, 224)


def test_another_way_to_cut_is_named(folder):
    squashed, centred = (
        open_training_data(config(folder, f"timm:{name}")) for name in ("convnext_base.fb_in22k_ft_in1k_384", NAME)
    )
    assert squashed.notes[-1].startswith("timm prepares images for these weights with crop_mode squash")
    assert not any("crop_mode" in note for note in centred.notes)


def test_images_in_memory_keep_their_size_and_their_channels():
    data = open_digits(None, DataConfig())
    known = {"mean": HALF, "std": HALF, "image_size": [224, 224], "crop_pct": 0.9, "interpolation": "bilinear"}
    assert prepared_for_weights(data, known, DataConfig()) == data
    grey = prepared_for_weights(data, {**known, "mean": [0.5], "std": [0.25]}, DataConfig())
    assert grey == replace(data, mean=(0.5,), std=(0.25,))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"crop_pct": 0.0}, "loading.crop_pct=0.0"),
        ({"crop_pct": 1.5}, "loading.crop_pct=1.5"),
        ({"std": [0.0]}, r"loading.std\[0\]=0.0: a number greater than 0"),
        ({"mean": [float("nan")]}, r"loading.mean\[0\]=nan: a number"),
        ({"interpolation": "cubic"}, "unknown loading.interpolation 'cubic'. Did you mean 'bicubic'"),
    ],
)
def test_numbers_that_mean_nothing(wrong, message):
    with pytest.raises(ValueError, match=message):
        DataConfig(**wrong)


def test_as_many_numbers_as_channels():
    with pytest.raises(ValueError, match=r"loading.mean has 3 numbers, the images of digits have 1 channels"):
        open_digits(None, DataConfig(mean=HALF))


def test_on_the_command_line():
    from dynavit.cli.main import COMMANDS
    from dynavit.cli.parse import parse_options

    words = ["--loading.mean", "0.5,0.5,0.5", "--loading.std=0.2,0.2,0.2", "--loading.crop-pct", "0.95"]
    loading = parse_options(COMMANDS["train"], words, prog="dynavit train")["config_of_run"].loading
    assert (loading.mean, loading.std, loading.crop_pct) == (HALF, [0.2] * 3, 0.95)


def test_a_photograph_is_turned_alike_everywhere(tmp_path):
    """A camera's sensor lay on its side: the loader, prediction and a bundle see the person upright."""
    upright = Image.linear_gradient("L").convert("RGB").resize((300, 200))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees to see it
    (tmp_path / "val" / "a").mkdir(parents=True)
    (tmp_path / "val" / "b").mkdir()
    for name in ("a", "b"):
        upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "val" / name / "x.png", exif=exif)
    upright.save(tmp_path / "plain.png")
    card = {"kind": "files", "image_size": [64, 64], "crop_pct": 0.9, "interpolation": "bilinear", "mean": HALF, "std": HALF}
    expected = preprocess(tmp_path / "plain.png", card)
    turned = tmp_path / "val" / "a" / "x.png"
    data = open_data("folder", tmp_path, DataConfig(workers=0))
    data = data.prepared_as({"classes": ["a", "b"], "preprocess": card}, "x")
    how = LoaderOptions(train=False, batch_size=2, augment=AugmentConfig(), config=DataConfig(workers=0))
    ((batch,),) = data.loader("val", how).epoch()
    assert torch.equal(batch.inputs[0], expected)
    assert torch.equal(preprocess(turned, card), expected)
    assert torch.equal(torch.from_numpy(prepare(turned, card)), expected)
