"""Exported splits are read again as they were."""

import numpy as np
import pytest

from dynavit.data.config import DataConfig
from dynavit.data.detection.export import write_coco
from dynavit.data.open import open_data


def test_shapes_as_a_folder_of_ones_own(tmp_path):
    data = open_data("shapes", None, DataConfig(options={"train": 4, "val": 0, "test": 3, "vary": 1.0, "size": 64}))
    write_coco(data, "test", tmp_path / "mine" / "test.json", tmp_path / "mine")
    again = open_data("detection_folder", tmp_path / "mine", DataConfig(val_fraction=0, options={"masks": True, "short": None}))
    assert again.classes == data.classes and again.category_ids == data.category_ids
    for number, (before, after) in enumerate(zip(data.splits["test"].records(), again.splits["train"].records(), strict=True)):
        assert data.picture("test", number).tobytes() == again.picture("train", number).tobytes()
        assert (before.boxes == after.boxes).all() and (before.labels == after.labels).all() and before.id == after.id
        every = np.ones(len(before.boxes), bool)
        assert all((one == other).all() for one, other in zip(before.masks(every), after.masks(every), strict=True))


def test_a_split_that_is_not_there(tmp_path):
    data = open_data("shapes", None, DataConfig(options={"train": 1, "val": 0, "test": 0}))
    with pytest.raises(ValueError, match="shapes has no split 'test'; it has train"):
        write_coco(data, "test", tmp_path / "a.json")
