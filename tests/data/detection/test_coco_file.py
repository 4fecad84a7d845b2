"""Annotation files: labels, boxes, crowds, masks, and what is wrong with a file."""

import copy
import json

import numpy as np
import pytest
from faster_coco_eval import COCO

from data.detection.made_up_coco import CATEGORIES, content, crowd_mask, disc
from dynavit.data.detection.coco_file import parse_coco, read_coco
from dynavit.data.detection.dataset import coco_form
from dynavit.data.detection.rle import encode


def test_labels_count_sorted_ids_and_lead_back():
    found = parse_coco(content())
    assert found.category_ids == [1, 13, 90]
    assert found.classes == ["person", "stop sign", "toothbrush"]
    labels = {record.id: record.labels.tolist() for record in found.records}
    assert labels == {7: [0, 2, 0, 0, 0], 139: [0, 1], 285: [], 5000: [2]}
    for record in found.records:
        ids = [annotation["category_id"] for annotation in content()["annotations"] if annotation["image_id"] == record.id]
        assert [found.category_ids[label] for label in record.labels] == ids


def test_boxes_are_cut_at_the_border_and_those_without_content_are_not_learned():
    first, second, empty, last = parse_coco(content()).records
    assert first.usable.tolist() == [True, True, False, False, False]
    assert first.corners[first.usable].tolist() == [[5.5, 6.25, 25.5, 21.75], [50, 0, 60, 15]]
    assert second.crowd.tolist() == [True, False] and second.usable.tolist() == [False, True]
    assert empty.boxes.shape == (0, 4) and empty.usable.shape == (0,) and empty.corners.shape == (0, 4)
    assert last.areas.tolist() == [int(disc(48, 80, 20, 30, 9).sum())] and not last.crowd.any()


def test_masks_of_every_spelling():
    first, second, _, last = parse_coco(content()).records
    (crowd,) = second.masks(second.crowd)
    assert (crowd == crowd_mask()).all()
    assert (last.masks(last.usable)[0] == disc(48, 80, 20, 30, 9)).all()
    # Polygons: two of the three have corners enough. Pixels far from the borders of the polygons are known.
    several = first.masks(first.usable)[0]
    assert several[8:13, 8:24].all() and several[17, 12:17].all()
    assert not several[:5].any() and not several[23:].any() and not several[1:3, 1:3].any()
    assert several.sum() == pytest.approx(20 * 7.75 + 12 * 5.75 / 2, rel=0.1)


def test_masks_are_the_packages():
    """Without the polygon that is too short, which the package takes for a box."""
    plain = content()
    plain["annotations"][0]["segmentation"].pop()
    plain["annotations"][5]["id"] = 99  # it warns about 0
    index = COCO(plain)
    for record in parse_coco(plain).records:
        own = [annotation for annotation in plain["annotations"] if annotation["image_id"] == record.id]
        for place in np.flatnonzero(record.masked):
            chosen = np.arange(len(own)) == place
            assert (record.masks(chosen)[0] == index.annToMask(own[place])).all()


def test_coco_form_holds_everything_again():
    found = parse_coco(content())
    again = coco_form(found.records, found.classes, found.category_ids)
    assert {image["id"] for image in again["images"]} == {7, 139, 285, 5000}
    assert len({entry["id"] for entry in again["annotations"]}) == 8
    assert min(entry["id"] for entry in again["annotations"]) == 1  # an id of 0 would count as not found
    for before, after in zip(content()["annotations"], again["annotations"], strict=True):
        assert after["bbox"] == pytest.approx(before["bbox"])
        assert (after["image_id"], after["category_id"]) == (before["image_id"], before["category_id"])
        assert after["iscrowd"] == before.get("iscrowd", 0)
    twice = parse_coco(json.loads(json.dumps(again)))
    assert coco_form(twice.records, twice.classes, twice.category_ids) == again


WRONG = [
    (("annotations", 1, "image_id", 8), "annotation 3: it belongs to image 8, which is not among the images"),
    (("annotations", 1, "category_id", 2), "annotation 3: it is of category 2, which is not among the categories"),
    (("annotations", 1, "bbox", [1, 2, 3]), "annotation 3: its bbox is .* expected four numbers"),
    (("annotations", 1, "bbox", [1, 2, float("nan"), 3]), "annotation 3: its bbox"),
    (("annotations", 1, "area", "large"), "annotation 3: its area is 'large'"),
    (("annotations", 1, "segmentation", [1, 2, 3, 4, 5, 6]), "annotation 3: .* a polygon is a list in a list"),
    (("annotations", 1, "segmentation", [[1, 2, 3, 4, 5, 6, 7]]), "annotation 3: one of its polygons has 7 numbers"),
    (("annotations", 1, "segmentation", [[1, 2, 3]]), "annotation 3: one of its polygons has 3 numbers"),
    (
        ("annotations", 1, "segmentation", [[1, 2, 3, 4, float("inf"), 6]]),
        "annotation 3: one of its polygons has 6 numbers, or",
    ),
    (("annotations", 1, "segmentation", [[[1, 2], [3, 4], [5, 9]]]), r"annotation 3: one of its polygons is \[\[1, 2\]"),
    (("annotations", 1, "segmentation", [[[1, 2], [3]]]), r"annotation 3: one of its polygons is \[\[1, 2\]"),
    (("annotations", 1, "segmentation", [["1", "2", "3", "4", "5", "9"]]), "annotation 3: one of its polygons is .* numbers"),
    (("annotations", 1, "segmentation", ["1,2,3,4,5,9"]), "annotation 3: one of its polygons is '1,2,3,4,5,9'"),
    (("annotations", 1, "segmentation", [[1, 2, 3, 4, 5, 9], None]), "annotation 3: one of its polygons is None"),
    (("annotations", 1, "segmentation", [{"size": [40, 60], "counts": [2400]}]), "annotation 3: one of its polygons is {"),
    (("annotations", 1, "segmentation", "abc"), "annotation 3: its segmentation is str"),
    (("annotations", 1, "iscrowd", "0"), "annotation 3: its iscrowd is '0', neither 0 nor 1"),
    (("annotations", 1, "segments_info", []), "annotation 3: .* as panoptic files have; boxes are in instances_"),
    (("annotations", 5, "segmentation", {"size": 64, "counts": [9]}), "annotation 0: its mask has the size 64, and its image"),
    (
        ("annotations", 5, "segmentation", {"size": [64, 48], "counts": [[3072]]}),
        "annotation 0: run lengths are .* whole numbers",
    ),
    (("annotations", 5, "segmentation", {"size": [64, 48], "counts": [0.5, 3071.5]}), "annotation 0: run lengths are"),
    (("annotations", 5, "segmentation", {"size": [64, 48], "counts": None}), "annotation 0: run lengths are .* not None"),
    (("annotations", 5, "segmentation", {"size": [3, 3], "counts": [9]}), "annotation 0: its mask has the size"),
    (("annotations", 5, "segmentation", {"size": [64, 48], "counts": [9]}), "annotation 0: its run lengths cover 9 of 3072"),
    (("annotations", 5, "segmentation", {"size": [64, 48]}), "annotation 0: its mask has a size and no counts"),
    (("annotations", 0, "segmentation", [[1e7, 1, 2e7, 1, 2e7, 9]]), "annotation 12: .* reaches to 2e\\+07 pixels, far"),
    (("annotations", 0, "bbox", [1, 1, 10**400, 5]), "annotation 12: its bbox is"),
    (("annotations", 5, "segmentation", {"size": [64, 48], "counts": [10**400]}), "annotation 0: run lengths are"),
    (("annotations", 5, "segmentation", {"size": [64, 48], "counts": [2**64, 5]}), "annotation 0: run lengths are"),
    (("images", 1, "id", 10**400), r"images\[1\] has no id that is a whole number"),
    (("images", 1, "id", 7), r"images\[1\] has the id 7, which another one of images has too"),
    (("images", 1, "id", "seven"), r"images\[1\] has no id that is a whole number"),
    (("images", 1, "id", 7.5), r"images\[1\] has no id that is a whole number"),
    (("images", 1, "id", True), r"images\[1\] has no id that is a whole number"),
    (("images", 1, "width", 48.5), "image 139 has height and width 64 and 48.5"),
    (("images", 1, "height", None), "image 139 has height and width None and 48"),
    (("images", 1, "file_name", ""), "entry 139 of images has file_name=''"),
    (("categories", 0, "name", None), "entry 90 of categories has name=None"),
]


def test_files_of_the_wild_mean_the_same(tmp_path):
    """A byte order mark, ids and sizes as floats, unknown keys, null for what may be missing."""
    plain, wild = content(), copy.deepcopy(content())
    for image in wild["images"]:
        image.update(id=float(image["id"]), height=float(image["height"]), coco_url="http://x", license=3)
    for category in wild["categories"]:
        category["id"] = float(category["id"])
    for entry in wild["annotations"]:
        entry.update(image_id=float(entry["image_id"]), category_id=float(entry["category_id"]), attributes={"occluded": False})
        entry.update(area=entry.get("area"), iscrowd=entry.get("iscrowd") or None, segmentation=entry.get("segmentation"))
    (tmp_path / "wild.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(wild).encode())
    found, known = read_coco(tmp_path / "wild.json"), parse_coco(plain)
    assert found.category_ids == known.category_ids and all(isinstance(number, int) for number in found.category_ids)
    again = coco_form(found.records, found.classes, found.category_ids)
    assert json.dumps(again) == json.dumps(coco_form(known.records, known.classes, known.category_ids))


def test_without_an_area_it_is_that_of_the_mask():
    """A thin L of 12 x 12 pixels, 4 wide, in a box of 40 x 40; an object without a mask has its box."""
    thin = copy.deepcopy(content())
    corner = [0, 0, 4, 0, 4, 8, 12, 8, 12, 12, 0, 12]
    thin["annotations"][6] |= {"bbox": [0, 0, 40, 40], "area": None, "segmentation": [corner, [20, 20, 24, 20, 24, 22, 20, 22]]}
    assert parse_coco(thin).records[1].areas[1] == 8 * 4 + 4 * 12 + 4 * 2
    for none in (None, [[0, 0, 40, 0, 0, 40, 40, 40]]):  # the second crosses itself, so that its two halves cancel
        thin["annotations"][6]["segmentation"] = none
        assert parse_coco(thin).records[1].areas[1] == 1600


def test_run_lengths_of_zeros_are_no_mask():
    empty = copy.deepcopy(content())
    for counts in ([64 * 48], encode(np.zeros((64, 48), bool))["counts"]):
        empty["annotations"][6]["segmentation"] = {"size": [64, 48], "counts": counts}
        assert parse_coco(empty).records[1].masked.tolist() == [True, False]


@pytest.mark.parametrize(
    ("change", "reason"), WRONG, ids=lambda value: None if isinstance(value, str) else "-".join(map(str, value[:3]))
)
def test_what_is_wrong_is_named(change, reason, tmp_path):
    part, place, name, value = change
    broken = copy.deepcopy(content())
    broken[part] = [dict(entry) for entry in broken[part]]
    broken[part][place][name] = value
    file = tmp_path / "wrong.json"
    file.write_text(json.dumps(broken))
    with pytest.raises(ValueError, match=reason) as caught:
        read_coco(file)
    assert str(file) in str(caught.value)


def test_other_files_are_told_apart(tmp_path):
    file = tmp_path / "found.json"
    with pytest.raises(ValueError, match="there is no annotation file"):
        read_coco(file)
    for text, reason in (("[]", "as results of a detector"), ("{", "is no JSON"), ('{"images": []}', "no list 'annotations'")):
        file.write_text(text)
        with pytest.raises(ValueError, match=reason):
            read_coco(file)
    missing = {**content(), "annotations": [{"id": 9}]}
    file.write_text(json.dumps(missing))
    with pytest.raises(ValueError, match="annotation 9: it has no 'image_id'"):
        read_coco(file)
    file.write_text(json.dumps({**content(), "categories": CATEGORIES[:0]}))
    with pytest.raises(ValueError, match="'categories' is empty"):
        read_coco(file)
