"""ImageNet folders: exactly the 1,000 classes, in the published order."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from data.image_files import write_image
from dynavit.data.config import DataConfig
from dynavit.data.imagenet import imagenet_classes, open_imagenet


def write_classes(root: Path, split: str, ids: Iterable[str]) -> Path:
    image = write_image(root / "one.png", 0)
    for id in ids:
        (root / split / id).mkdir(parents=True)
        os.link(image, root / split / id / "0.JPEG")
    return root


def test_the_order_of_published_weights():
    ids, names = imagenet_classes()
    assert len(ids) == len(set(names)) == 1000 and ids == sorted(ids)
    known = {0: ("n01440764", "tench"), 1: ("n01443537", "goldfish"), 207: ("n02099601", "golden retriever")}
    known |= {281: ("n02123045", "tabby"), 999: ("n15075141", "toilet tissue"), 134: ("n02012849", "crane (n02012849)")}
    for label, (id, name) in known.items():
        assert ids[label] == id and names[label].startswith(name)


def test_val_alone_is_enough_for_evaluation(tmp_path):
    ids, names = imagenet_classes()
    data = open_imagenet(write_classes(tmp_path, "val", ids), DataConfig())
    assert list(data.splits) == ["val"] and data.classes == names
    assert data.splits["val"].labels.tolist() == list(range(1000))
    assert data.splits["val"].paths[207] == str(tmp_path / "val/n02099601/0.JPEG")


def test_missing_and_surplus_classes_are_named(tmp_path):
    ids, _ = imagenet_classes()
    with pytest.raises(ValueError, match=r"val lacks the class folders n01440764, n01443537, .*\.\.\. \(7 in all\)"):
        open_imagenet(write_classes(tmp_path / "few", "val", ids[7:]), DataConfig())
    with pytest.raises(ValueError, match="val also has the class folders cat; it needs exactly the 1000 WordNet ids"):
        open_imagenet(write_classes(tmp_path / "many", "val", ["cat", *ids]), DataConfig())


def test_a_missing_folder(tmp_path):
    with pytest.raises(ValueError, match="data imagenet: there is no folder"):
        open_imagenet(tmp_path / "absent", DataConfig())
