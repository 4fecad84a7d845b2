"""Sequences in memory: padding, batches, and what a run stores about them."""

import pytest
import torch

from dynavit.common.data import LoaderOptions
from dynavit.data.config import AugmentConfig, DataConfig
from dynavit.data.sequences import SequenceData, SequenceSplit

ROWS, LABELS = [bytes([1, 2, 3]), bytes([4]), bytes([5, 6]), bytes([7, 8, 9, 10])], [0, 1, 1, 0]


def data(width=5, words=11, classes=2):
    splits = {"train": SequenceSplit.of(ROWS, LABELS)}
    vocabulary = tuple(map(str, range(words)))
    return SequenceData("rows", splits, [str(n) for n in range(classes)], vocabulary, width, "listops", "test_sequence")


def how(train=False, batch_size=3, augment=None, **options):
    return LoaderOptions(train=train, batch_size=batch_size, augment=augment or AugmentConfig(), config=DataConfig(), **options)


def test_rows_are_padded_on_the_right_to_the_width_of_the_set():
    (first,), (second,) = data().loader("train", how()).epoch()
    assert first.inputs["ids"].tolist() == [[1, 2, 3, 0, 0], [4, 0, 0, 0, 0], [5, 6, 0, 0, 0]]
    assert torch.equal(first.inputs["mask"], first.inputs["ids"] > 0)
    assert second.inputs["ids"].tolist() == [[7, 8, 9, 10, 0]] and second.inputs["ids"].dtype == torch.int64
    assert first.targets.tolist() == [0, 1, 1] and (first.count, second.count) == (3, 1)


def test_training_visits_each_row_once_in_another_order_each_epoch():
    loader = data().loader("train", how(train=True, batch_size=2, seed=1))
    orders = [[row for (batch,) in loader.epoch(epoch) for row in batch.index.tolist()] for epoch in range(4)]
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders) and len(set(map(tuple, orders))) > 1
    resumed = [batch.index.tolist() for (batch,) in loader.epoch(2, start=1)]
    assert resumed == [orders[2][2:]]


def test_a_part_of_a_split():
    part = data().subset("train", torch.tensor([3, 1]))
    assert [part.splits["train"][row] for row in range(2)] == [ROWS[3], ROWS[1]]
    ids, _ = part.splits["train"].padded(torch.tensor([1, 0]), 4)
    assert ids.tolist() == [[4, 0, 0, 0], [7, 8, 9, 10]]


def test_a_model_gets_what_it_knows():
    facts = data(width=9).describe()
    assert data().prepared_as(facts, "the run").width == 9
    assert data().prepared_as({name: value for name, value in facts.items() if name != "classes"}, "the run").width == 9
    with pytest.raises(ValueError, match="other words than the model of the run"):
        data(words=12).prepared_as(facts, "the run")
    with pytest.raises(ValueError, match="has 3 classes, the model of the run tells 2 apart"):
        data(classes=3).prepared_as(facts, "the run")
    with pytest.raises(ValueError, match="row 3 has 4 tokens, but rows are padded to 3"):
        data(width=3)


def test_there_is_nothing_to_augment():
    with pytest.raises(ValueError, match="augment.mixup is about images"):
        data().loader("train", how(train=True, augment=AugmentConfig(mixup=0.8)))
