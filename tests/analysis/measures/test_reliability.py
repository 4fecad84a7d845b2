"""Bins of a reliability diagram, by hand."""

import pytest
import torch

from dynavit.analysis.measures.reliability import bin_sums, calibration_error, filled_bins, reliability
from dynavit.common.batch import Batch
from dynavit.tasks.classification import ClassificationEvaluator

# Two bins, (0, 0.5] and (0.5, 1]: the border belongs to the lower one, and 0 to the first.
CONFIDENCE = torch.tensor([0.0, 0.5, 0.6, 1.0, 0.9])
CORRECT = torch.tensor([False, True, True, False, True])


def test_bins_by_hand():
    found = reliability(CONFIDENCE, CORRECT, bins=2)
    assert [line["samples"] for line in found] == [2, 3]
    assert found[0] == pytest.approx({"samples": 2, "confidence": 0.25, "accuracy": 0.5})
    assert found[1] == pytest.approx({"samples": 3, "confidence": 2.5 / 3, "accuracy": 2 / 3})


def test_the_error_by_hand():
    sums = bin_sums(CONFIDENCE, CORRECT, bins=2)
    assert sums.tolist() == [[2, 3], [0.5, pytest.approx(2.5)], [1, 2]]
    assert calibration_error(sums) == pytest.approx((0.5 + 0.5) / 5)


def test_sums_of_batches_add():
    parts = [bin_sums(CONFIDENCE[some], CORRECT[some]) for some in (slice(0, 2), slice(2, 2), slice(2, 5))]
    torch.testing.assert_close(sum(parts), bin_sums(CONFIDENCE, CORRECT))


def test_empty_bins_are_left_out():
    found = reliability(torch.tensor([0.95, 0.97]), torch.tensor([True, True]))
    assert found == [pytest.approx({"samples": 2, "confidence": 0.96, "accuracy": 1.0})]
    assert reliability(torch.tensor([]), torch.tensor([], dtype=torch.bool)) == []


def test_it_groups_as_evaluation_does():
    logits = 3 * torch.randn(200, 4, generator=torch.Generator().manual_seed(0)).double()
    targets = torch.arange(200) % 4
    evaluator = ClassificationEvaluator(torch.nn.Identity(), 4)
    evaluator.update(Batch(logits, targets, torch.arange(200), 200, 200))
    confidence, predicted = logits.softmax(-1).max(-1)
    sums = bin_sums(confidence, predicted == targets)
    found = filled_bins(sums)
    assert len(found) > 5
    assert [pytest.approx(line) for line in evaluator.details()["reliability"]] == found
    assert dict(evaluator.results())["ece"] == pytest.approx(calibration_error(sums))
