"""Validation cut from train, and a limit on it."""

import pytest
import torch

from dynavit.data.config import DataConfig
from dynavit.data.dataset import FileSplit, MemorySplit
from dynavit.data.splits import arrange_splits, check_labels, cut_validation, limited

# 100 of class 0, 40 of class 1, 10 of class 2, one of class 3, mixed
LABELS = torch.tensor([0] * 100 + [1] * 40 + [2] * 10 + [3])[torch.randperm(151, generator=torch.Generator().manual_seed(0))]
LABELS_OF_SINGLES = torch.tensor([0, 1, 2, 3, 3])
CLASSES = ["a", "b", "c", "d"]


def memory_split(labels):
    return MemorySplit(torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1), labels)


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.37, 0.5, 0.9])
def test_a_cut_takes_the_same_part_of_each_class(fraction):
    train, val = cut_validation(LABELS, fraction, seed=0)
    assert sorted([*train.tolist(), *val.tolist()]) == list(range(151))
    assert len(val) == round(fraction * 151)
    assert torch.equal(train, train.sort().values) and torch.equal(val, val.sort().values)
    for label, size in enumerate((100, 40, 10, 1)):
        assert abs(int((LABELS[val] == label).sum()) - fraction * size) <= 1
    assert 3 in LABELS[train]  # its only image stays where something is learned


def test_small_classes_together_give_their_part():
    labels = torch.cat([torch.arange(50).repeat(5), torch.full((500,), 50)])  # 50 classes of 5 images, one of 500
    given = [int((labels[cut_validation(labels, 0.05, seed)[1]] < 50).sum()) for seed in range(20)]
    assert 10 < sum(given) / 20 < 15  # 12.5 of 37.5


def test_classes_of_one_image_keep_it():
    train, val = cut_validation(LABELS_OF_SINGLES, 0.5, 0)
    assert len(train) == 4 and LABELS_OF_SINGLES[val].tolist() == [3]


def test_a_cut_of_a_small_set_is_never_empty():
    train, val = cut_validation(LABELS_OF_SINGLES, 0.01, 0)
    assert len(train) == 4 and LABELS_OF_SINGLES[val].tolist() == [3]
    assert len(cut_validation(LABELS_OF_SINGLES, 0.0, 0)[1]) == 0


def test_classes_that_can_spare_no_image_are_an_error():
    with pytest.raises(ValueError, match=r"x: val_fraction=0.1 .* no class has two; --loading.val_fraction 0 trains without"):
        arrange_splits("x", {"train": memory_split(torch.arange(4))}, CLASSES, DataConfig())


def test_cuts_follow_the_seed():
    assert torch.equal(cut_validation(LABELS, 0.2, 0)[1], cut_validation(LABELS, 0.2, 0)[1])
    assert not torch.equal(cut_validation(LABELS, 0.2, 0)[1], cut_validation(LABELS, 0.2, 1)[1])


def test_each_image_is_as_likely_to_be_cut():
    labels = torch.tensor([0] * 10 + [1] * 30)
    chosen = torch.zeros(40)
    for seed in range(400):
        chosen[cut_validation(labels, 0.2, seed)[1]] += 1
    assert (chosen / 400 - 0.2).abs().max() < 0.08  # four standard deviations


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_impossible_fractions(fraction):
    with pytest.raises(ValueError, match="at least 0 and less than 1"):
        cut_validation(LABELS, fraction, 0)


@pytest.mark.parametrize(("limit", "sizes"), [(4, (1, 1, 1, 1)), (16, (5, 5, 5, 1)), (61, (25, 25, 10, 1))])
def test_a_limit_takes_equally_many_where_there_are(limit, sizes):
    index = limited(LABELS, limit, seed=3)
    assert len(index) == len(index.unique()) == limit
    assert torch.equal(index, index.sort().values)
    assert tuple(torch.bincount(LABELS[index]).tolist()) == sizes


def test_limits_are_nested():
    assert set(limited(LABELS, 20, 0).tolist()) < set(limited(LABELS, 50, 0).tolist())


def test_arranged_splits():
    whole = memory_split(LABELS)
    splits, notes = arrange_splits("x", {"train": whole, "test": whole}, CLASSES, DataConfig(val_fraction=0.2, limit=40))
    assert {name: len(split) for name, split in splits.items()} == {"train": 40, "val": 30, "test": 151}
    assert notes == ("validation: 30 of 151 training images, split_seed=0", "training uses 40 of 121 images")
    for split in splits.values():  # images went with their labels
        assert torch.equal(LABELS[split.images.flatten().long()], split.labels)
    assert not set(splits["train"].images.flatten().tolist()) & set(splits["val"].images.flatten().tolist())


def test_validation_and_test_have_limits_of_their_own():
    whole = memory_split(LABELS)
    config = DataConfig(val_fraction=0.5, val_limit=6, test_limit=8)
    splits, notes = arrange_splits("x", {"train": whole, "test": whole}, CLASSES, config)
    assert len(splits["val"]) == 6 and len(splits["test"]) == 8
    assert len(splits["train"]) == len(arrange_splits("x", {"train": whole}, CLASSES, DataConfig(val_fraction=0.5))[0]["train"])
    assert splits["test"].labels.unique().tolist() == [0, 1, 2, 3], "of every class"
    assert notes[1:] == (
        f"validation uses 6 of {len(LABELS) - len(splits['train'])} images",
        f"test uses 8 of {len(LABELS)} images",
    )
    alone, _ = arrange_splits("x", {"test": whole}, CLASSES, config)
    assert len(alone["test"]) == 8


def test_the_limit_leaves_validation_alone():
    whole = memory_split(LABELS)
    few, _ = arrange_splits("x", {"train": whole}, CLASSES, DataConfig(limit=10))
    all_, _ = arrange_splits("x", {"train": whole}, CLASSES, DataConfig(limit=0))
    assert torch.equal(few["val"].images, all_["val"].images)


def test_no_cut_where_there_is_validation_or_none_is_wanted():
    whole = memory_split(LABELS)
    assert arrange_splits("x", {"train": whole}, CLASSES, DataConfig(val_fraction=0)) == ({"train": whole}, ())
    splits = {"train": whole, "val": whole}
    assert arrange_splits("x", splits, CLASSES, DataConfig()) == (splits, ())


def test_files_are_split_alike():
    paths = [f"{i}.png" for i in range(151)]
    splits, _ = arrange_splits("x", {"train": FileSplit(paths, LABELS)}, CLASSES, DataConfig())
    memory, _ = arrange_splits("x", {"train": memory_split(LABELS)}, CLASSES, DataConfig())
    assert splits["val"].paths == [f"{i}.png" for i in memory["val"].images.flatten().tolist()]


def test_wrong_labels_are_named():
    with pytest.raises(ValueError, match=r"x, split test: image 1 has label 4, but labels are 0 to 3 \(2 such images\)"):
        arrange_splits(
            "x", {"train": memory_split(LABELS), "test": memory_split(torch.tensor([0, 4, -1]))}, CLASSES, DataConfig()
        )
    with pytest.raises(ValueError, match="there are no images"):
        check_labels("x", torch.zeros(0, dtype=torch.long), 2)


def test_a_class_without_images_is_named():
    with pytest.raises(ValueError, match=r"x, split train: 1 of 5 classes have no image: 4 \(e\)"):
        arrange_splits("x", {"train": memory_split(LABELS)}, [*CLASSES, "e"], DataConfig())
    with pytest.raises(ValueError, match=r"limit=3: 1 of 4 classes have no image"):
        arrange_splits("x", {"train": memory_split(LABELS)}, CLASSES, DataConfig(limit=3))
    with pytest.raises(ValueError, match="limit=-1"):
        arrange_splits("x", {"train": memory_split(LABELS)}, CLASSES, DataConfig(limit=-1))
