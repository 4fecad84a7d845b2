"""Batches of any form, moved as a whole."""

from collections import OrderedDict
from typing import NamedTuple

import pytest
import torch

from dynavit.common.batch import Batch, moved

HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64


class Boxes(NamedTuple):
    corners: torch.Tensor
    labels: torch.Tensor
    file: str


def a_batch(inputs, targets) -> Batch:
    return Batch(inputs, targets, torch.arange(3), 2, 7, ["a broken one"])


def test_a_tensor_moves_and_gets_the_type_if_its_numbers_are_floating_point():
    batch = a_batch(torch.rand(3, 1, 4, 4), torch.rand(3, 10)).to("meta", DOUBLE)
    assert batch.inputs.device.type == batch.targets.device.type == batch.index.device.type == "meta"
    assert (batch.inputs.dtype, batch.targets.dtype, batch.index.dtype) == (DOUBLE, SINGLE, torch.int64)
    assert (batch.count, batch.step_count, batch.broken) == (2, 7, ["a broken one"])


def test_what_is_there_already_is_not_copied():
    images, labels = torch.rand(3, 4), torch.arange(3)
    batch = a_batch({"images": images}, [labels]).to("cpu", SINGLE)
    assert batch.inputs["images"] is images and batch.targets[0] is labels


def test_tokens_with_a_mask_keep_their_types():
    inputs = {"tokens": torch.ones(3, 5, dtype=torch.int64), "mask": torch.ones(3, 5, dtype=torch.bool), "x": torch.ones(3)}
    batch = a_batch(inputs, torch.arange(3)).to("meta", DOUBLE)
    assert {name: value.dtype for name, value in batch.inputs.items()} == {
        "tokens": torch.int64,
        "mask": torch.bool,
        "x": DOUBLE,
    }
    assert all(value.device.type == "meta" for value in batch.inputs.values())
    assert inputs["x"].device.type == "cpu"  # the batch that was given is as it was


def test_views_of_different_sizes():
    views = [torch.rand(3, 3, 8, 8, dtype=DOUBLE), (torch.rand(3, 3, 4, 4), torch.rand(3, 3, 4, 4))]
    batch = a_batch(views, None).to("meta", HALF)
    assert isinstance(batch.inputs, list) and isinstance(batch.inputs[1], tuple) and batch.targets is None
    assert [view.dtype for view in (batch.inputs[0], *batch.inputs[1])] == [HALF] * 3


def test_boxes_of_different_numbers():
    targets = [Boxes(torch.rand(n, 4), torch.arange(n), f"{n}.jpg") for n in (0, 2, 1)]
    batch = a_batch({"images": torch.rand(3, 3, 8, 8), "sizes": [(8, 6), (5, 8), (8, 8)]}, targets).to("meta", DOUBLE)
    assert batch.inputs["sizes"] == [(8, 6), (5, 8), (8, 8)] and batch.inputs["images"].dtype == DOUBLE
    for n, boxes in zip((0, 2, 1), batch.targets, strict=True):
        assert isinstance(boxes, Boxes) and boxes.file == f"{n}.jpg" and boxes.corners.shape == (n, 4)
        assert boxes.corners.dtype == SINGLE and boxes.labels.device.type == "meta"


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_dicts_keep_class_and_order(kind):
    there = moved(kind([("b", torch.ones(1)), ("a", 1)]), "meta")
    assert type(there) is kind and list(there) == ["b", "a"] and there["b"].device.type == "meta"


def test_other_values_stay_themselves():
    for value in (None, 3, 0.5, "text", {1, 2}, object()):
        assert moved(value, "meta", DOUBLE) is value
