"""A detector that returns the truth in pixels of its input gets 100 %, whatever the size, the batches and the processes."""

import json
import math
import sys
from dataclasses import replace

import pytest
import torch

from data.detection.made_up_coco import write_coco
from dynavit.analysis.measures.ap_tables import ap_tables
from dynavit.common.data import LoaderOptions
from dynavit.data.config import AugmentConfig, DataConfig
from dynavit.data.detection.results import in_original_pixels, truth_of
from dynavit.data.detection.transform import mirrored
from dynavit.data.open import open_data
from dynavit.tasks.coco_evaluator import CocoEvaluator


def shapes(**options):
    return open_data(
        "shapes", None, DataConfig(options={"val": 7, "test": 2, "vary": 1.0, "size": 64, "largest": 40, **options})
    )


def batches(data, split="val", **how):
    wanted = LoaderOptions(train=False, batch_size=3, augment=AugmentConfig(), config=DataConfig(workers=0), **how)
    return [batch for step in data.loader(split, wanted).epoch() for batch in step]


def perfect(data, mapped=True):
    """A detector of the truth, in pixels of the stored image or, wrongly, of the input."""

    def detect(batch):
        results = []
        for target, number in zip(batch.targets, batch.index.tolist(), strict=True):
            split = data.splits[target["split"]]
            record = split.source.record(split.keys[number])
            boxes = in_original_pixels(target["boxes"], target) if mapped else target["boxes"]
            scores = torch.full((len(boxes),), 0.9)
            masks = truth_of(record)["masks"] if data.has_masks else None
            results.append({"boxes": boxes, "scores": scores, "labels": target["labels"], "masks": masks})
        return results

    return detect


def evaluated(data, detect, *parts, masks=True):
    """An evaluator that has seen these lists of batches, one for each process."""
    evaluators = [CocoEvaluator(detect, data, masks=masks) for _ in parts]
    for evaluator, part in zip(evaluators, parts, strict=True):
        for batch in part:
            evaluator.update(batch)
    joined = evaluators[0]
    joined.totals = {
        "found": [entry for evaluator in evaluators for entry in evaluator.totals["found"]],
        "samples": sum(evaluator.totals["samples"] for evaluator in evaluators),
    }
    return joined


@pytest.mark.parametrize("short", [None, 50, 131])
def test_the_truth_in_resized_pixels_is_perfect_after_mapping(short):
    data = shapes(short=short)
    found = evaluated(data, perfect(data), batches(data))
    results = dict(found.results())
    assert results == pytest.approx(dict.fromkeys(results, 1.0)) and len(results) == 6 and found.samples == 7
    if short is not None:
        wrong = dict(evaluated(data, perfect(data, mapped=False), batches(data)).results())
        assert wrong["box_ap"] < 0.5 and wrong["mask_ap"] == pytest.approx(1)


def test_boxes_of_mirrored_inputs_are_mirrored_back():
    data = shapes(short=50)
    for batch in batches(data):
        for place, target in enumerate(batch.targets):
            height, width = batch.inputs["sizes"][place].tolist()
            _, turned = mirrored((batch.inputs["images"][place, :, :height, :width], target))
            back = in_original_pixels(turned["boxes"], turned)
            assert torch.allclose(back, in_original_pixels(target["boxes"], target), atol=1e-3)


def test_real_oddities_are_perfect_too(tmp_path):
    """Crowds, an empty image, ids with gaps, polygons. Not found is what cannot be learned: persons without an area, and a
    toothbrush whose box reaches so far beyond the border that what is left of it is another box."""
    data = open_data("coco", write_coco(tmp_path), DataConfig(options={"short": 70, "long": 100, "masks": True}))
    found = evaluated(data, perfect(data), batches(data))
    results = dict(found.results())
    rows = {row["class"]: row["AP"] for row in found.details()["coco"]["bbox"]["per_class"]}
    assert rows["stop sign"] == pytest.approx(1) and 0 < rows["toothbrush"] < 0.6 and 0 < rows["person"] < 0.5
    masks = {row["class"]: row["AP"] for row in found.details()["coco"]["segm"]["per_class"]}
    assert masks["stop sign"] == masks["toothbrush"] == pytest.approx(1)
    assert results["box_ap"] == pytest.approx(sum(rows.values()) / 3)
    assert {entry["category_id"] for entry in found.predictions()} == {1, 13, 90}


def test_processes_and_repeated_images_change_nothing():
    data = shapes()
    detect = perfect(data)
    alone = evaluated(data, detect, batches(data))
    two = evaluated(data, detect, *(batches(data, rank=rank, world=2) for rank in range(2)))
    assert two.samples == alone.samples == 7  # a borrowed sample does not count
    assert dict(two.results()) == dict(alone.results())
    key = lambda entry: json.dumps(entry, sort_keys=True)  # noqa: E731
    assert sorted(two.predictions(), key=key) == sorted(alone.predictions(), key=key)
    twice = evaluated(data, detect, batches(data), batches(data)[:1])
    assert twice.predictions() == alone.predictions() and dict(twice.results()) == dict(alone.results())


def test_an_image_that_cannot_be_read_is_not_looked_at(tmp_path):
    """Though something takes its place, so that a batch is never empty."""
    write_coco(tmp_path, ("val2017",))
    (tmp_path / "val2017" / "empty.png").write_bytes(b"nothing")
    data = open_data("coco", tmp_path, DataConfig(options={"short": 40, "eval_batch": 1}))
    found = evaluated(data, perfect(data), batches(data), masks=False)
    assert dict(found.results())["box_ap"] > 0 and found.samples == found.details()["coco"]["images"] == 3


def test_a_subset_is_judged_by_itself():
    data = shapes()
    few = data.subset("val", torch.tensor([4, 1]))
    found = evaluated(few, perfect(few), batches(few))
    assert dict(found.results())["box_ap"] == pytest.approx(1) and found.details()["coco"]["images"] == 2


def test_details_count_errors_and_have_tables():
    data = shapes()

    def wrong(batch):
        results = perfect(data)(batch)
        for result in results:
            result["labels"] = (result["labels"] + 1) % 4
        return results

    found = evaluated(data, wrong, batches(data))
    assert dict(found.results())["box_ap"] < 0.1
    details = found.details()
    objects = sum(len(record.boxes) for record in data.splits["val"].records())
    errors = details["errors"]
    assert errors["missed"] + errors["right"] == objects and errors["wrong class"] > 0.7 * objects
    (overall, of_class, sorts) = ap_tables(json.loads(json.dumps(details)))
    assert [row[0] for row in overall[2]] == ["box", "mask"] and overall[1][1:4] == ["AP", "AP50", "AP75"]
    assert [row[0] for row in of_class[2]] == data.classes and sum(int(row[1]) for row in of_class[2]) == objects
    assert ["missed", str(errors["missed"])] in sorts[2]
    assert ap_tables({}) == []


def test_without_the_extra_training_goes_on(monkeypatch):
    data = shapes()
    found = evaluated(data, perfect(data), batches(data))
    for package in ("faster_coco_eval", "pycocotools"):
        monkeypatch.setitem(sys.modules, package, None)
    assert all(math.isnan(value) for value in dict(found.results()).values())
    (note,) = found.notes()
    assert "[detect]" in note and "pip install" in note
    assert "coco" not in found.details()


def test_cautions_are_told_with_every_result():
    data = replace(shapes(), caution="7 of 7 images of val are training images too")
    found = evaluated(data, perfect(data), batches(data))
    assert list(found.notes()) == [data.caution] and found.details()["caution"] == data.caution


def test_nothing_evaluated_is_an_error():
    data = shapes()
    found = CocoEvaluator(perfect(data), data)
    found.totals = {"found": [], "samples": torch.tensor(0)}
    with pytest.raises(ValueError, match="nothing was evaluated"):
        dict(found.results())
