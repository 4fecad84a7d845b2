"""Parts of a data set of images, and what a run stores about it."""

import json

import pytest
import torch

from dynavit.data.dataset import DataSet, FileSplit, MapSplit, MemorySplit
from dynavit.data.open import open_data
from dynavit.data.preprocess import describe_preprocessing

LABELS = torch.arange(6)
SPLITS = {
    "memory": MemorySplit(torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1), LABELS),
    "files": FileSplit([str(i) for i in range(6)], LABELS),
    "kept": MapSplit(int, range(6), LABELS),
}


@pytest.mark.parametrize("kind", SPLITS)
def test_a_subset_has_the_chosen_images_and_the_other_splits(kind):
    data = DataSet("x", {"train": SPLITS[kind], "test": SPLITS[kind]}, list("abcdef"), (1, 1), (0.5,), (0.5,), notes=("n",))
    few = data.subset("test", torch.tensor([4, 0]))
    chosen = few.splits["test"]
    numbers = {
        "memory": lambda: chosen.images.flatten().tolist(),
        "files": lambda: [int(path) for path in chosen.paths],
        "kept": lambda: [chosen.read(key) for key in chosen.keys],
    }
    assert chosen.labels.tolist() == numbers[kind]() == [4, 0]
    assert few.splits["train"] is data.splits["train"] and len(data.splits["test"]) == 6
    assert (few.name, few.classes, few.notes) == (data.name, data.classes, data.notes)


def test_a_description_is_enough_to_make_inputs_later():
    digits = open_data("digits")
    stored = json.loads(json.dumps(digits.describe()))
    assert stored == {"classes": digits.classes, "preprocess": describe_preprocessing(digits)}
