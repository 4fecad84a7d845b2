"""Every recipe is what it says: its command parses, its options exist, its model can be built for its data."""

import functools
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from dynavit.cli.main import COMMANDS
from dynavit.cli.parse import parse_options
from dynavit.cli.recipes import DIRECTORY, list_recipes, read_recipe
from dynavit.data.config import DataConfig
from dynavit.data.dataset import DataSet
from dynavit.data.digits import open_digits
from dynavit.data.open import open_data
from dynavit.models import create_model
from dynavit.norms import list_norms
from dynavit.runs.assemble import model_call
from dynavit.runs.compare import CompareConfig, run_config, settings_of

RECIPES = {recipe.name: recipe for recipe in list_recipes()}
DOCUMENT = Path(__file__).parents[1] / "docs" / "recipes.md"

# (classes, channels, side) as stored, or as files are delivered
SHAPES = {
    "fashion_mnist": (10, 1, 28),
    "cifar10": (10, 3, 32),
    "cifar100": (100, 3, 32),
    "imagenet": (1000, 3, 224),
    "folder": (7, 3, 224),
}
BOXES = {"coco": 80, "shapes": 4}  # classes of images with boxes


def last(outputs):
    """The logits of a classifier, or of the last exit of a cascade."""
    return outputs[-1] if isinstance(outputs, tuple) else outputs


def options(recipe):
    """The command's name, and what the recipe's own command line means to it."""
    words = shlex.split(recipe.command)
    name, *rest = words[words.index("dynavit") + 1 :]
    return name, parse_options(COMMANDS[name], rest, prog=f"dynavit {name}")


@functools.cache
def runs(recipe):
    """The configurations of all runs of a recipe."""
    name, parsed = options(recipe)
    if name == "train":
        return [parsed["config_of_run"]]
    grid = parsed["config_of_grid"]
    assert isinstance(grid, CompareConfig)
    return [run_config(grid, setting, seed) for setting in settings_of(grid) for seed in grid.seeds]


def described(config):
    """The data set of a run without its images, or with few expressions, padded as far."""
    if config.data == "digits":
        return open_digits(None, config.loading)
    if config.data == "listops":
        few = {"train": 20, "val": 5, "test": 5, "pad_to": 200 if config.data_dir is None else 2000}
        return open_data("listops", None, DataConfig(options={**few, **config.loading.options}))
    if config.data in BOXES:
        names = [str(number) for number in range(BOXES[config.data])]
        return SimpleNamespace(name=config.data, classes=names, task="detection", has_masks=True)
    classes, channels, side = SHAPES[config.data]
    side = config.loading.image_size or side
    names = [str(number) for number in range(classes)]
    return DataSet(config.data, {}, names, (side, side), (0.5,) * channels, (0.5,) * channels)


def inputs(data):
    if data.name != "listops":
        return (torch.empty(2, data.channels, *data.image_size, device="meta"),)
    ids = torch.empty(2, data.width, dtype=torch.int64, device="meta")
    return ids, torch.empty(2, data.width, dtype=torch.bool, device="meta")


def test_what_there_is():
    assert list(RECIPES) == [
        "cifar10",
        "cifar100",
        "cifar100_vit_b16_224",
        "cifar10_dvt",
        "cifar10_dvt_t2t_vit_12_finetune",
        "cifar10_vit_b16_224",
        "digits",
        "digits_dvt",
        "dino_cifar10_small",
        "dino_digits",
        "dino_imagenet_vit_small_star",
        "fashion_mnist",
        "finetune",
        "finetune_dvt",
        "imagenet_dvt_t2t_vit_12",
        "imagenet_dvt_t2t_vit_14",
        "imagenet_pvt_tiny_dtn",
        "imagenet_swin_tiny_dtn",
        "imagenet_vit_small_star_dtn",
        "listops_lra2020",
        "listops_lra2021",
        "listops_short",
        "maskrcnn_pvt_small_coco",
        "maskrcnn_pvt_tiny_coco",
        "maskrcnn_shapes",
        "quickstart",
        "retinanet_pvt_small_coco",
        "retinanet_pvt_tiny_coco",
        "retinanet_shapes",
    ]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_headers_are_complete_and_the_file_holds_nothing_but_options(recipe):
    text = (DIRECTORY / f"{recipe.name}.yaml").read_text()
    head = text.splitlines()[:4]
    assert [line.partition(":")[0] for line in head] == ["# What", "# Command", "# Cost", "# Reached"]
    assert all([recipe.what, recipe.command, recipe.cost, recipe.reached])
    assert "/home" not in text and "/work" not in text
    words = shlex.split(recipe.command)
    assert words[words.index("--config") + 1] == recipe.name
    assert words[words.index("--out") + 1] == f"runs/{recipe.name}"


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_the_command_means_what_the_file_says(recipe):
    for config in runs(recipe):
        given = yaml.safe_load((DIRECTORY / f"{recipe.name}.yaml").read_text())
        for name in ("title", "norms", "seeds", "processes"):
            given.pop(name, None)
        assert_holds(config, given)


def assert_holds(config, given):
    for name, value in given.items():
        held = getattr(config, name)
        if isinstance(value, dict) and not isinstance(held, dict):
            assert_holds(held, value)
        else:
            assert (list(held) if isinstance(held, tuple) else held) == value, name


# The same models as in other recipes, deeper or for other data.
ALIKE = {
    "cifar10_dvt_t2t_vit_12_finetune": "imagenet_dvt_t2t_vit_12",
    "cifar10_vit_b16_224": "cifar100_vit_b16_224",
    "cifar10": "cifar100",
    "dino_imagenet_vit_small_star": "imagenet_vit_small_star_dtn",
    "imagenet_dvt_t2t_vit_14": "imagenet_dvt_t2t_vit_12",
    "listops_lra2020": "listops_lra2021",
    "retinanet_pvt_tiny_coco": "maskrcnn_pvt_tiny_coco",
    "maskrcnn_pvt_small_coco": "maskrcnn_pvt_tiny_coco",
    "retinanet_pvt_small_coco": "retinanet_pvt_tiny_coco",
}


@pytest.mark.parametrize(
    "recipe", [pytest.param(RECIPES[name], id=name, marks=[pytest.mark.slow] if name in ALIKE else []) for name in RECIPES]
)
def test_the_models_can_be_built(recipe):
    for config in {config.norm: config for config in runs(recipe)}.values():
        data = described(config)
        call = model_call(config, data)
        with torch.device("meta"):
            model = create_model(**call)
        if config.data in BOXES:
            levels = model.pyramid(torch.empty(1, 3, 128, 160, device="meta"))
            assert model.num_classes == len(data.classes) and len(model.fpn(levels)) == 5
            continue
        outputs = model.num_features if config.task == "dino" else len(data.classes)  # features, or an answer for each class
        assert last(model.to("meta").eval()(*inputs(data))).shape == (2, outputs)
        assert config.norm is None or config.norm in list_norms()


def test_the_quickstart_compares_the_norms_of_the_papers_table():
    configs = runs(RECIPES["quickstart"])
    assert {config.norm for config in configs} == {"ln", "bn", "in", "gn", "rms", "scale", "dyt", "dtn"}
    assert len(configs) == 8 * 3


def test_the_document_shows_what_the_files_say():
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| [")]
    expected = [
        f"| [{r.name}](../src/dynavit/recipes/{r.name}.yaml) | {r.what} | {r.cost} | {r.reached} |" for r in RECIPES.values()
    ]
    assert rows == expected


def test_a_header_that_is_missing_is_seen(tmp_path):
    (tmp_path / "x.yaml").write_text("# What: a thing\n# Cost: 3 s\nlr: 1e-3\n")
    recipe = read_recipe(tmp_path / "x.yaml")
    assert (recipe.what, recipe.command, recipe.cost, recipe.reached) == ("a thing", "", "3 s", "")
