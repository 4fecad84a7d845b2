"""Results in COCO's form, as answers and back; inputs of one image."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from dynavit.data.detection.inputs import file_input, origin_of
from dynavit.data.detection.results import answer_of, coco_results, in_original_pixels, result_of, surer_than
from dynavit.data.detection.rle import encode

CLASSES, IDS = ["cat", "dog", "bus"], [3, 17, 90]
MASK = encode(np.eye(4, dtype=bool))


def result(masks=None):
    boxes = torch.tensor([[1.0, 2.0, 11.0, 22.0], [0.5, 0.5, 1.0, 4.0]])
    return {"boxes": boxes, "scores": torch.tensor([0.25, 0.75]), "labels": torch.tensor([2, 0]), "masks": masks}


def test_coco_results_have_corners_sizes_and_ids_of_the_file():
    first, second = json.loads(json.dumps(coco_results(5, result([MASK, {**MASK, "counts": MASK["counts"].encode()}]), IDS)))
    assert first == {"image_id": 5, "category_id": 90, "bbox": [1, 2, 10, 20], "score": 0.25, "segmentation": MASK}
    assert second["category_id"] == 3 and second["bbox"] == [0.5, 0.5, 0.5, 3.5] and second["segmentation"] == MASK
    assert "segmentation" not in coco_results(5, result(), IDS)[0]
    nothing = {"boxes": torch.zeros(0, 4), "scores": torch.zeros(0), "labels": torch.zeros(0), "masks": None}
    assert coco_results(5, nothing, IDS) == []


def test_an_answer_begins_with_the_surest_and_leads_back():
    answer = json.loads(json.dumps(answer_of(result([MASK, MASK]), CLASSES, (30, 40))))
    assert [entry["label"] for entry in answer["found"]] == ["cat", "bus"] and answer["size"] == [30, 40]
    back = result_of(answer, CLASSES)
    assert back["labels"].tolist() == [0, 2] and back["scores"].tolist() == [0.75, 0.25] and back["masks"] == [MASK, MASK]
    assert back["boxes"].tolist() == [[0.5, 0.5, 1, 4], [1, 2, 11, 22]]
    sure = surer_than(answer, 0.5)
    assert [entry["label"] for entry in sure["found"]] == ["cat"] and len(answer["found"]) == 2
    empty = result_of(surer_than(answer, 1), CLASSES)
    assert empty["boxes"].shape == (0, 4) and empty["masks"] is None


def test_boxes_are_cut_off_at_the_stored_images_border():
    target = {"original_size": (50, 100), "scale": (2.0, 0.5), "flipped": False}
    found = in_original_pixels(torch.tensor([[-4.0, 20.0, 60.0, 130.0]]), target)
    assert found.tolist() == [[0, 10, 100, 50]]


def test_a_file_becomes_an_input_upright_and_resized(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # on its side
    Image.new("RGB", (90, 60), (255, 255, 255)).save(tmp_path / "a.jpg", exif=exif)
    facts = {"short": 40, "long": 50, "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "interpolation": "bilinear"}
    inputs = file_input(tmp_path / "a.jpg", facts)
    assert inputs["original_sizes"].tolist() == [[90, 60]] and inputs["sizes"].tolist() == [[50, 33]]
    assert inputs["images"].shape == (1, 3, 64, 64)
    assert inputs["images"][0, :, :50, :33].min() == pytest.approx(1) and not inputs["images"][0, :, 50:].any()
    assert origin_of(inputs) == {"original_size": (90, 60), "scale": (50 / 90, 33 / 60), "flipped": False}
