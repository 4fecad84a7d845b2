"""Penn-Fudan: boxes from masks, the fixed split, and its export."""

import json

import numpy as np
import pytest
from PIL import Image

from dynavit.data.config import DataConfig
from dynavit.data.detection.coco_file import parse_coco
from dynavit.data.open import open_data


def write_penn_fudan(folder, images=52):
    """Like the real set: one mask file for each image, pixels of pedestrian k are k. The first has the real first's boxes."""
    for name in ("PNGImages", "PedMasks"):
        (folder / "PennFudanPed" / name).mkdir(parents=True)
    for number in range(1, images + 1):
        mask = np.zeros((536, 559) if number == 1 else (30, 40 + number), np.uint8)
        if number == 1:
            mask[181:431, 159:302] = 1
            mask[170:486, 419:535] = 2
        else:
            mask[5:25, 3:13], mask[2:20, 20:30] = 1, 2
            mask[10, 7] = 0  # a hole
        name = f"FudanPed{number:05d}"
        Image.fromarray(np.stack([mask] * 3, -1)).save(folder / "PennFudanPed" / "PNGImages" / f"{name}.png")
        Image.fromarray(mask).save(folder / "PennFudanPed" / "PedMasks" / f"{name}_mask.png")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_penn_fudan(tmp_path_factory.mktemp("penn"))


def test_boxes_of_the_first_image(folder):
    """Its text says (160, 182) - (302, 431), counted from 1 and inclusive."""
    data = open_data("penn_fudan", folder, DataConfig(val_fraction=0))
    first = data.splits["train"].records()[0]
    assert first.corners[0].tolist() == [159, 181, 302, 431]
    assert first.corners.shape == (2, 4) and first.areas[0] == 143 * 250
    assert data.classes == ["pedestrian"] and data.has_masks


def test_the_last_fifty_are_the_test(folder):
    data = open_data("penn_fudan", folder / "PennFudanPed", DataConfig(val_fraction=0.5))
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 1, "val": 1, "test": 50}
    assert data.splits["test"].records()[-1].name == "FudanPed00052.png"


def test_export_in_cocos_form(folder):
    data = open_data("penn_fudan", folder, DataConfig())
    exported = json.loads(json.dumps(data.ground_truth("test")))
    again = parse_coco(exported)
    assert [record.id for record in again.records] == list(range(3, 53))
    for before, after in zip(data.splits["test"].records(), again.records, strict=True):
        assert (before.boxes == after.boxes).all() and (before.areas == after.areas).all()
        for one, other in zip(before.masks(before.usable), after.masks(after.usable), strict=True):
            assert (one == other).all()
    assert again.records[0].masks(np.array([True, False]))[0].sum() == 20 * 10 - 1


def test_what_is_missing_is_named(folder, tmp_path):
    with pytest.raises(ValueError, match="needs --data-dir"):
        open_data("penn_fudan", None)
    with pytest.raises(ValueError, match="holds 0 .png images; expected 170"):
        open_data("penn_fudan", tmp_path)
    write_penn_fudan(tmp_path)
    (tmp_path / "PennFudanPed" / "PedMasks" / "FudanPed00003_mask.png").unlink()
    with pytest.raises(ValueError, match="cannot read the mask .*FudanPed00003_mask.png"):
        open_data("penn_fudan", tmp_path)
