"""Classification against the definitions, sample by sample."""

import json
import math
from types import SimpleNamespace

import pytest
import torch

from dynavit.common.batch import Batch
from dynavit.data.config import AugmentConfig
from dynavit.data.mixing import Mixer
from dynavit.tasks.classification import Classification


def batch_of(inputs, targets, count=None):
    n = len(inputs)
    return Batch(inputs, targets, torch.arange(n), n if count is None else count, n)


def evaluated(logits, targets, sizes):
    """Results and details when the samples arrive in batches of these sizes."""
    evaluator = Classification(torch.nn.Identity(), logits.shape[1]).evaluator()
    for part, target in zip(logits.split(sizes), targets.split(sizes), strict=True):
        evaluator.update(batch_of(part, target))
    return dict(evaluator.results()), evaluator.details()


@pytest.fixture
def samples():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(60, 7, generator=generator, dtype=torch.float64)
    return logits, torch.randint(7, (60,), generator=generator)


def matrix(details, classes=7):
    """The confusion with true classes as rows."""
    whole = [[0] * classes for _ in range(classes)]
    for true, predicted, images in zip(*(details["confusion"][name] for name in ("true", "predicted", "images")), strict=True):
        whole[true][predicted] = images
    return whole


def test_the_confusion_of_many_classes_is_small():
    """As JSON: a thousand images of a thousand classes are at most a thousand pairs, not a million."""
    logits = torch.randn(1000, 1000, generator=torch.Generator().manual_seed(0))
    _, details = evaluated(logits, torch.arange(1000), [1000])
    assert sum(details["confusion"]["images"]) == 1000
    assert len(json.dumps(details["confusion"], indent=2)) < 50_000


def test_every_number_is_its_definition(samples):
    logits, targets = samples
    results, details = evaluated(logits, targets, [60])
    loss = top1 = top5 = 0.0
    confusion = [[0] * 7 for _ in range(7)]
    bins = [[] for _ in range(15)]
    for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
        total = sum(map(math.exp, row))
        p = [math.exp(z) / total for z in row]
        order = sorted(range(7), key=lambda k: -p[k])
        loss -= math.log(p[target])
        top1 += order[0] == target
        top5 += target in order[:5]
        confusion[target][order[0]] += 1
        bins[math.ceil(max(p) * 15) - 1].append((max(p), order[0] == target))
    ece = sum(abs(sum(c for c, _ in b) / len(b) - sum(r for _, r in b) / len(b)) * len(b) / 60 for b in bins if b)
    assert results == pytest.approx({"loss": loss / 60, "top1": top1 / 60, "top5": top5 / 60, "ece": ece}, abs=1e-12)
    assert matrix(details) == confusion
    assert details["per_class"] == pytest.approx([row[k] / sum(row) for k, row in enumerate(confusion)])
    assert sum(b["samples"] for b in details["reliability"]) == 60


def test_batching_does_not_matter(samples):
    logits, targets = samples
    whole, details = evaluated(logits, targets, [60])
    parts, other = evaluated(logits, targets, [1, 19, 40])
    assert parts == pytest.approx(whole, abs=1e-12)
    assert other["confusion"] == details["confusion"]


def test_borrowed_samples_do_not_count(samples):
    logits, targets = samples
    evaluator = Classification(torch.nn.Identity(), 7).evaluator()
    evaluator.update(batch_of(logits, targets))
    before = dict(evaluator.results())
    evaluator.update(batch_of(logits[:1], targets[:1], count=0))
    assert dict(evaluator.results()) == before and evaluator.samples == 60


def test_loss_takes_classes_and_probabilities(samples):
    logits, targets = samples
    task = Classification(torch.nn.Identity(), 7)
    hard = task(batch_of(logits, targets))["loss"]
    soft = task(batch_of(logits, torch.nn.functional.one_hot(targets, 7).double()))["loss"]
    by_hand = -sum(row.log_softmax(0)[target] for row, target in zip(logits, targets, strict=True)) / 60
    assert hard.item() == pytest.approx(by_hand.item()) and soft.item() == pytest.approx(by_hand.item())


def test_training_accuracy_is_known_unless_images_are_mixed(samples):
    logits, targets = samples
    task, how = Classification(torch.nn.Identity(), 7), {"classes": 7, "seed": 0}
    right = sum(int(row.argmax()) == target for row, target in zip(logits, targets.tolist(), strict=True)) / 60
    assert task(batch_of(logits, targets))["top1"].item() == pytest.approx(right)
    smoothed = Mixer(augment=AugmentConfig(label_smoothing=0.1), **how)(batch_of(logits, targets), 0, 0, 0)
    assert task(smoothed)["top1"].item() == pytest.approx(right)
    mixed = Mixer(augment=AugmentConfig(mixup=0.8), **how)(batch_of(logits, targets), 0, 0, 0)
    assert list(task(mixed)) == ["loss"]


def test_a_class_without_samples_has_no_accuracy():
    _, details = evaluated(torch.eye(3), torch.tensor([0, 1, 1]), [3])
    assert details["per_class"] == [1.0, 0.5, None]


@pytest.mark.parametrize("kind", ["equal", "bfloat16", "few classes"])
def test_ties_are_broken_as_topk_does(kind):
    generator = torch.Generator().manual_seed(0)
    classes = 3 if kind == "few classes" else 1000
    logits = torch.randn(400, classes, generator=generator).bfloat16() * (kind != "equal")
    order = logits.float().sort(descending=True, stable=True).indices
    targets = order[torch.arange(400), torch.randint(10, (400,), generator=generator) % classes]
    results, _ = evaluated(logits, targets, [400])
    five = [row.topk(min(5, classes)).indices.tolist() for row in logits]
    right = sum(target in best for best, target in zip(five, targets.tolist(), strict=True))
    assert results["top5"] == right / 400
    if classes > 5:  # a target that ties with the fifth is not always among the five
        strictly_above = (logits > logits.gather(1, targets[:, None])).sum(-1)
        assert right < (strictly_above < 5).sum()


def test_logits_that_are_not_finite_are_wrong_and_counted(samples):
    logits, targets = samples
    _, before = evaluated(logits, targets, [60])
    bad = logits.clone()
    bad[0, 3], bad[1, targets[1]], bad[2] = math.nan, math.inf, -math.inf
    bad[3, (targets[3] + 1) % 7] = -math.inf  # a class that was ruled out: an answer all the same
    evaluator = Classification(torch.nn.Identity(), 7).evaluator()
    evaluator.update(batch_of(bad, targets))
    results, details = dict(evaluator.results()), evaluator.details()
    usable = [i for i in range(60) if i > 2]
    assert results["top1"] == sum(int(bad[i].argmax()) == int(targets[i]) for i in usable) / 60
    assert results["top5"] == sum(int(targets[i]) in bad[i].topk(5).indices.tolist() for i in usable) / 60
    assert math.isnan(results["loss"]) and 0 <= results["ece"] <= 1 and results["not_finite"] == 3
    (text,) = evaluator.notes()
    assert text.startswith("3 of 60 images have logits that are not finite")
    assert sum(details["confusion"]["images"]) == sum(b["samples"] for b in details["reliability"]) == 57
    of_class = torch.bincount(targets, minlength=7).tolist()
    assert details["per_class"] == [row[k] / of_class[k] for k, row in enumerate(matrix(details))]
    assert sum(before["confusion"]["images"]) == 60


def test_a_diverged_model_is_right_about_nothing():
    task, batch = Classification(torch.nn.Identity(), 3), batch_of(torch.full((6, 3), math.nan), torch.arange(6) % 3)
    evaluator = task.evaluator()
    evaluator.update(batch)
    results = dict(evaluator.results())
    assert (results["top1"], results["top5"], results["not_finite"]) == (0, 0, 6)
    assert task.examples(batch, SimpleNamespace(mean=(0.0,), std=(1.0,))) == []
    answer = task.answer(batch.inputs[:1], {"classes": ["a", "b", "c"]}, 2)
    assert set(answer) == {"error"} and "not finite" in answer["error"]


def test_mistakes_are_explained():
    evaluator = Classification(torch.nn.Identity(), 4).evaluator()
    with pytest.raises(ValueError, match="gives 3 numbers for 4 classes"):
        evaluator.update(batch_of(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)))
    with pytest.raises(ValueError, match="nothing was evaluated"):
        dict(evaluator.results())
