"""ImageNet-C, -R and -A in folders: found, matched to a model's classes, and not cropped twice."""

import os

import pytest
import torch

from data.image_files import write_image
from dynavit.data.config import DataConfig
from dynavit.data.imagenet import imagenet_classes
from dynavit.data.imagenet_variants import (
    class_numbers,
    corruption_folders,
    is_imagenet,
    open_imagenet_c,
    open_variant,
    variant_ids,
)
from dynavit.data.loader import make_loader
from dynavit.data.read_image import read_image
from dynavit.data.transforms import transforms

IDS, NAMES = imagenet_classes()


def link(image, folder):
    folder.mkdir(parents=True)
    os.link(image, folder / "0.JPEG")


# ---- Classes


@pytest.mark.parametrize("classes", [NAMES, IDS])
def test_the_classes_of_imagenet_by_name_or_id(classes):
    numbers, note = class_numbers(classes)
    assert [numbers[id] for id in IDS] == list(range(1000))
    assert note is None
    assert is_imagenet(classes)


@pytest.mark.parametrize("known", [NAMES, IDS])
def test_in_another_order_they_are_matched(known):
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(0)).tolist()
    numbers, note = class_numbers([known[i] for i in order])
    assert [numbers[IDS[i]] for i in order] == list(range(1000))
    assert note is None
    assert is_imagenet([known[i] for i in order])


def test_some_of_them_by_id():
    assert class_numbers(["n01443537", "n01440764"]) == ({"n01443537": 0, "n01440764": 1}, None)
    assert not is_imagenet(["n01443537", "n01440764"])


def test_1000_with_other_names_are_taken_in_order():
    numbers, note = class_numbers([f"class {i}" for i in range(1000)])
    assert numbers["n15075141"] == 999
    assert note == "the 1000 classes have other names than ImageNet's and are taken in its order"
    assert not is_imagenet([f"class {i}" for i in range(1000)])


def test_other_classes_are_refused():
    with pytest.raises(ValueError, match=r"the model tells 2 classes apart \(cat, dog\), which are not ImageNet's"):
        class_numbers(["cat", "dog"])


# ---- ImageNet-C


@pytest.mark.parametrize("inside", ["", "weather"])
def test_corruptions_lie_openly_or_in_their_groups(tmp_path, inside):
    for number, id in enumerate(["n01443537", "n01440764", "n02099601"]):
        write_image(tmp_path / inside / "fog/3" / id / "0.png", number)
    classes = ["n02099601", "n01440764"]
    data = open_imagenet_c(tmp_path, "fog", 3, classes)
    split = data.splits["test"]
    assert [(path.split("/")[-2], classes[label]) for path, label in zip(split.paths, split.labels.tolist(), strict=True)] == [
        ("n01440764", "n01440764"),
        ("n02099601", "n02099601"),
    ]
    assert data.classes == classes


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"lacks fog; it has no corruption at all, expected as .*gaussian_noise.1.<id>"):
        corruption_folders(tmp_path, ["fog"], [1])
    write_image(tmp_path / "fog/1/n01440764/0.png", 0)
    with pytest.raises(ValueError, match="lacks snow, frost; it has fog, which --corruptions can choose"):
        corruption_folders(tmp_path, ["snow", "fog", "frost"], [1])
    with pytest.raises(ValueError, match="fog has no severity 2, 5; it has 1"):
        corruption_folders(tmp_path, ["fog"], [1, 2, 5])
    with pytest.raises(ValueError, match="lacks the class folders n01443537"):
        open_imagenet_c(tmp_path, "fog", 1, ["n01440764", "n01443537"])


def test_files_of_the_models_size_come_unchanged(tmp_path):
    """They are crops already; an ordinary file of this size would lose its border."""
    file = write_image(tmp_path / "fog/1/n01440764/0.png", 0, (224, 224))
    data = open_imagenet_c(tmp_path, "fog", 1, ["n01440764"])
    (batch,) = next(iter(make_loader(data, "test", train=False, batch_size=1, config=DataConfig(workers=0)).epoch()))
    pixels = transforms.Normalize(data.mean, data.std)(transforms.ToTensor()(read_image(file)))
    assert torch.equal(batch.inputs[0], pixels)


# ---- ImageNet-R and -A


@pytest.mark.parametrize(("variant", "first"), [("imagenet_r", 1), ("imagenet_a", 6)])
def test_the_200_classes(tmp_path, variant, first):
    ids = variant_ids(variant)
    image = write_image(tmp_path / "one.png", 0)
    for id in ids:
        link(image, tmp_path / "set" / id)
    (tmp_path / "set/README.txt").write_text("comes with it")
    data, chosen = open_variant(variant, tmp_path / "set", NAMES)
    assert len(set(chosen)) == 200 and chosen[0] == first
    assert [IDS[number] for number in chosen] == sorted(ids)
    assert data.splits["test"].labels.tolist() == chosen
    assert data.crop_pct is None, "these are whole photographs"
    with pytest.raises(ValueError, match=r"the model does not know the classes .* \(199 in all\)"):
        open_variant(variant, tmp_path / "set", ids[:1])
    link(image, tmp_path / "set/cat")
    with pytest.raises(ValueError, match="also has the class folders cat; it has exactly 200"):
        open_variant(variant, tmp_path / "set", NAMES)


def test_an_incomplete_collection(tmp_path):
    write_image(tmp_path / variant_ids("imagenet_r")[0] / "0.png", 0)
    with pytest.raises(ValueError, match=r"ImageNet-R: .* lacks the class folders .* \(199 in all\)"):
        open_variant("imagenet_r", tmp_path, NAMES)
    with pytest.raises(ValueError, match="ImageNet-A: there is no folder"):
        open_variant("imagenet_a", tmp_path / "nowhere", NAMES)
