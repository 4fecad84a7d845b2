"""k nearest neighbours against loops."""

import math

import pytest
import torch

from dynavit.tasks.nearest import accuracies, neighbour_scores

CLASSES = 4


def sample(n=40, queries=15, dim=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    bank, asked = (torch.randn(count, dim, dtype=torch.float64, generator=generator) for count in (n, queries))
    return bank, torch.randint(CLASSES, (n,), generator=generator), asked


def plain(bank, labels, asked, k, weight=lambda cosine, _: math.exp(cosine / 0.07)):
    """A loop over queries, over the bank, and over the k nearest."""
    scores = torch.zeros(len(asked), CLASSES, dtype=torch.float64)
    for q, x in enumerate(asked):
        cosines = []
        for j, y in enumerate(bank):
            cosines.append((float(sum(a * b for a, b in zip(x / x.norm(), y / y.norm(), strict=True))), j))
        nearest = sorted(cosines, reverse=True)[:k]
        for cosine, j in nearest:
            scores[q, labels[j]] += weight(cosine, [c for c, _ in nearest])
    return scores


def test_scores_are_the_loops():
    bank, labels, asked = sample()
    found = neighbour_scores(bank, labels, asked, CLASSES, [10, 3, 1])
    assert list(found) == [1, 3, 10]
    for k, scores in found.items():
        torch.testing.assert_close(scores, plain(bank, labels, asked, k), rtol=1e-9, atol=1e-9)


def test_weights_of_a_softmax_give_the_same_classes():
    bank, labels, asked = sample()

    def softmax(cosine, all_of_them):
        return math.exp(cosine / 0.07) / sum(math.exp(each / 0.07) for each in all_of_them)

    ours = neighbour_scores(bank, labels, asked, CLASSES, [7])[7]
    assert torch.equal(ours.argmax(-1), plain(bank, labels, asked, 7, softmax).argmax(-1))


def test_the_nearest_of_a_training_image_is_itself():
    bank, labels, _ = sample(n=30)
    assert accuracies(neighbour_scores(bank, labels, bank, CLASSES, [1])[1], labels)["top1"] == 1.0


def test_the_order_of_the_bank_does_not_matter(monkeypatch):
    bank, labels, asked = sample()
    order = torch.randperm(len(bank), generator=torch.Generator().manual_seed(3))
    before = neighbour_scores(bank, labels, asked, CLASSES, [5])[5]
    torch.testing.assert_close(neighbour_scores(bank[order], labels[order], asked, CLASSES, [5])[5], before)
    monkeypatch.setattr("dynavit.tasks.nearest.CHUNK", 80)  # two queries at a time
    torch.testing.assert_close(neighbour_scores(bank, labels, asked, CLASSES, [5])[5], before)


def test_too_many_neighbours_are_an_error():
    bank, labels, asked = sample(n=12)
    with pytest.raises(ValueError, match="k = 20 neighbours are more than the 12 training images"):
        neighbour_scores(bank, labels, asked, CLASSES, [5, 20])


def test_equal_scores_count_for_the_lowest_class():
    scores = torch.tensor([[0.0, 2.0, 2.0, 0.0]])
    assert accuracies(scores, torch.tensor([1])) == {"top1": 1.0, "top5": 1.0}
    assert accuracies(scores, torch.tensor([2]))["top1"] == 0.0
