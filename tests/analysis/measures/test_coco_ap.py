"""Average precision: the package against the definition written out, and what is asked of the numbers around it."""

import json
import sys

import numpy as np
import pytest

from data.detection.made_up_coco import content
from dynavit.analysis.measures.coco_ap import MEASURES, evaluate_detections, without_repeats
from dynavit.data.detection.coco_file import parse_coco
from dynavit.data.detection.dataset import coco_form
from dynavit.data.detection.rle import counts_of, decode, encode

THRESHOLDS = [0.5 + 0.05 * step for step in range(10)]
AREAS = {"AP": (0, 1e10), "APs": (0, 32**2), "APm": (32**2, 96**2), "APl": (96**2, 1e10)}


# ---- The definition, for few boxes


def overlap(found, wanted, crowd):
    """Intersection over union; over the found box alone where the other is a crowd."""
    (x, y, w, h), (a, b, c, d) = found, wanted
    common = max(0, min(x + w, a + c) - max(x, a)) * max(0, min(y + h, b + d) - max(y, b))
    return common / (w * h if crowd else w * h + c * d - common)


def mask_overlap(found, wanted, crowd):
    found, wanted = decode(found), decode(wanted)
    common = (found & wanted).sum()
    return common / (found.sum() if crowd else (found | wanted).sum())


def matches(detections, truths, threshold, area, kind, most=100):
    """(score, hit) of each detection that counts, and the number of objects to find, in one image."""
    inside = lambda size: area[0] <= size <= area[1]  # noqa: E731
    ignored = [bool(truth.get("iscrowd")) or not inside(truth["area"]) for truth in truths]
    taken, counted = set(), []
    for detection in sorted(detections, key=lambda each: -each["score"])[:most]:
        best, chosen = min(threshold, 1 - 1e-10), None
        for wanted in (False, True):  # objects to find come first, those to ignore are for what is left
            if chosen is not None:
                break
            for place, truth in enumerate(truths):
                crowd = bool(truth.get("iscrowd"))
                if ignored[place] != wanted or (place in taken and not crowd):
                    continue
                same = (
                    overlap(detection["bbox"], truth["bbox"], crowd)
                    if kind == "bbox"
                    else mask_overlap(detection["segmentation"], truth["segmentation"], crowd)
                )
                if same >= best:
                    best, chosen = same, place
        if chosen is None:
            size = detection["bbox"][2] * detection["bbox"][3] if kind == "bbox" else decode(detection["segmentation"]).sum()
            if inside(size):
                counted.append((detection["score"], False))
        else:
            taken.add(chosen)
            if not ignored[chosen]:
                counted.append((detection["score"], True))
    return counted, ignored.count(False)


def average_precision(truth, results, image_ids, category, threshold, area=(0, 1e10), kind="bbox"):
    """Mean over 101 recalls of the best precision at that recall or a larger one; None without an object to find."""
    counted, wanted = [], 0
    for image in image_ids:
        own = [each for each in results if each["image_id"] == image and each["category_id"] == category]
        there = [each for each in truth["annotations"] if each["image_id"] == image and each["category_id"] == category]
        found, number = matches(own, there, threshold, area, kind)
        counted += found
        wanted += number
    if not wanted:
        return None
    counted.sort(key=lambda each: -each[0])
    hits = np.cumsum([hit for _, hit in counted])
    precision = [hits[place] / (place + 1) for place in range(len(counted))]
    recall = [hits[place] / wanted for place in range(len(counted))]
    total = 0.0
    for wished in np.linspace(0, 1, 101):
        total += max((p for p, r in zip(precision, recall, strict=True) if r >= wished), default=0.0)
    return total / 101


def average_recall(truth, results, most):
    """Mean over thresholds and classes of the part of all objects that the `most` surest detections of each image find."""
    found = []
    for category in truth["categories"]:
        own, there = ([e for e in entries if e["category_id"] == category["id"]] for entries in (results, truth["annotations"]))
        for threshold in THRESHOLDS:
            counted = [
                matches(
                    [each for each in own if each["image_id"] == image],
                    [each for each in there if each["image_id"] == image],
                    threshold,
                    AREAS["AP"],
                    "bbox",
                    most,
                )
                for image in ids(truth)
            ]
            if wanted := sum(number for _, number in counted):
                found.append(sum(hit for hits, _ in counted for _, hit in hits) / wanted)
    return sum(found) / len(found)


def oracle(truth, results, image_ids, kind="bbox"):
    found = {}
    for name, area in AREAS.items():
        values = [
            average_precision(truth, results, image_ids, category["id"], threshold, area, kind)
            for category in truth["categories"]
            for threshold in THRESHOLDS
        ]
        there = [value for value in values if value is not None]
        found[name] = sum(there) / len(there) if there else None
    for name, threshold in (("AP50", 0.5), ("AP75", 0.75)):
        values = [average_precision(truth, results, image_ids, c["id"], threshold, kind=kind) for c in truth["categories"]]
        there = [value for value in values if value is not None]
        found[name] = sum(there) / len(there) if there else None
    return found


# ---- Data


def rectangle(box, size=(200, 220)):
    mask = np.zeros(size, bool)
    x, y, w, h = (round(side) for side in box)
    mask[max(y, 0) : y + h, max(x, 0) : x + w] = True
    return encode(mask)


def scene(seed, images=3, crowd=True):
    """Some boxes of three sizes in two of three categories; detections near them, false ones and repeated ones."""
    random = np.random.default_rng(seed)
    annotations, results = [], []
    for image in range(1, images + 1):
        for number in range(random.integers(1, 5)):
            side = float(random.choice([12, 40, 110]))
            box = [float(random.integers(0, 80)), float(random.integers(0, 80)), side, side * 0.9]
            entry = {"image_id": image, "category_id": int(random.choice([3, 7])), "bbox": box, "area": box[2] * box[3]}
            annotations.append(
                {
                    **entry,
                    "id": len(annotations),  # from 0, as some files do
                    "iscrowd": int(crowd and number == 2),
                    "segmentation": rectangle(box),
                }
            )
            for _ in range(random.integers(0, 3)):
                near = [side + random.normal() * 2 for side in box]
                category = entry["category_id"] if random.random() < 0.8 else 7
                results.append(
                    {"image_id": image, "category_id": category, "bbox": near, "segmentation": rectangle(near)}
                    | {"score": float(random.random())}
                )
    pictures = [{"id": image, "height": 200, "width": 220, "file_name": f"{image}.png"} for image in range(1, images + 1)]
    categories = [{"id": 7, "name": "b"}, {"id": 3, "name": "a"}, {"id": 50, "name": "absent"}]
    return {"images": pictures, "annotations": annotations, "categories": categories}, results


def perfect(truth):
    return [
        {name: entry[name] for name in ("image_id", "category_id", "bbox", "segmentation")} | {"score": 0.9}
        for entry in truth["annotations"]
        if not entry["iscrowd"]
    ]


def ids(truth):
    return [image["id"] for image in truth["images"]]


# ---- Tests


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (3, 4, 5))])
def test_package_and_definition_agree(seed):
    truth, results = scene(seed)
    found = evaluate_detections(truth, results, ids(truth))
    for kind in ("bbox", "segm"):
        for name, value in oracle(truth, results, ids(truth), kind).items():
            assert found[kind][name] == (None if value is None else pytest.approx(value, abs=1e-9)), (kind, name)
    rows = found["bbox"]["per_class"]
    assert [row["class"] for row in rows] == ["a", "b", "absent"]
    for row in rows:
        own = [average_precision(truth, results, ids(truth), row["id"], threshold) for threshold in THRESHOLDS]
        assert row["AP"] == (None if own[0] is None else pytest.approx(np.mean(own), abs=1e-9))
        wanted = [e for e in truth["annotations"] if e["category_id"] == row["id"] and not e["iscrowd"]]
        assert row["objects"] == len(wanted)


def test_no_more_than_a_hundred_detections_of_an_image_and_class_count():
    """And no more than 1 and 10 for the other recalls."""
    truth, results = scene(3)
    far = {**results[0], "bbox": [150.0, 150.0, 9.0, 9.0], "segmentation": rectangle([150, 150, 9, 9])}
    crowded = [{**far, "category_id": category, "score": 0.5} for category in (3, 7) for _ in range(100)]
    high, low = ([{**each, "score": each["score"] / 2 + add} for each in results] for add in (0.5, 0.0))
    for mixed in (crowded + low, results + crowded):
        found = evaluate_detections(truth, mixed, kinds=("bbox",))["bbox"]
        for most in (1, 10, 100):
            assert found[f"AR{most}"] == pytest.approx(average_recall(truth, mixed, most), abs=1e-9)
        assert found["AP"] == pytest.approx(oracle(truth, mixed, ids(truth))["AP"], abs=1e-9)
    lost, kept = (evaluate_detections(truth, mixed, kinds=("bbox",))["bbox"]["AR100"] for mixed in (crowded + low, high))
    assert lost < kept


def test_perfect_detections_have_one_hundred_percent():
    truth, _ = scene(0)
    found = evaluate_detections(truth, perfect(truth), ids(truth))
    for kind in ("bbox", "segm"):
        assert found[kind]["AP"] == found[kind]["AP50"] == found[kind]["AP75"] == found[kind]["AR100"] == pytest.approx(1)
        assert set(MEASURES) < set(found[kind])
    assert found["images"] == 3


def test_a_real_file_with_all_its_oddities():
    """Crowds, boxes over the border, an object without area, polygons and both spellings of run lengths, floats."""
    found = parse_coco(content())
    truth = coco_form(found.records, found.classes, found.category_ids)
    results = []
    for record in found.records:
        for place in np.flatnonzero(~record.crowd):
            mask = record.masks(np.arange(len(record.boxes)) == place)[0]
            category = found.category_ids[record.labels[place]]
            entry = {"image_id": record.id, "category_id": category, "bbox": record.boxes[place].tolist(), "score": 0.5}
            results.append({**entry, "segmentation": encode(mask)})
    judged = evaluate_detections(truth, results, ids(truth))
    assert judged["bbox"]["AP"] == pytest.approx(1)
    # Three objects have no mask that could be found; two of them are persons in the first image.
    rows = {row["class"]: row for row in judged["segm"]["per_class"]}
    assert rows["stop sign"]["AP"] == rows["toothbrush"]["AP"] == pytest.approx(1) and 0 < rows["person"]["AP"] < 0.5
    raw = evaluate_detections(content(), results, ids(content()), ("bbox",))
    assert raw["bbox"]["AP"] == judged["bbox"]["AP"] and "segm" not in raw


def test_shifted_boxes_lose_the_strict_thresholds():
    truth, _ = scene(1, crowd=False)
    shifted = [{**each, "bbox": [each["bbox"][0] + 0.2 * each["bbox"][2], *each["bbox"][1:]]} for each in perfect(truth)]
    found = evaluate_detections(truth, shifted, ids(truth), ("bbox",))["bbox"]
    assert found["AP50"] == pytest.approx(1) and found["AP75"] == 0  # overlap 0.8 / 1.2
    assert found["AP"] == pytest.approx(0.4)


def test_repeated_detections_are_false_but_not_if_they_come_last():
    truth, _ = scene(2, crowd=False)
    right = perfect(truth)
    before = [{**each, "score": 0.95} for each in right]
    assert evaluate_detections(truth, right + [{**each, "score": 0.1} for each in right], ids(truth))["bbox"]["AP"] == 1
    mixed = [each for pair in zip(before, right, strict=True) for each in pair]
    assert evaluate_detections(truth, mixed, ids(truth))["bbox"]["AP"] == pytest.approx(1)
    ranked = [{**each, "score": 1 - 0.01 * place} for place, each in enumerate(mixed)]
    assert evaluate_detections(truth, ranked, ids(truth))["bbox"]["AP"] < 0.9


def test_a_wrong_class_is_not_found():
    truth, _ = scene(3, crowd=False)
    wrong = [{**each, "category_id": 50} for each in perfect(truth)]
    assert evaluate_detections(truth, wrong, ids(truth))["bbox"]["AP"] == 0


def test_an_empty_list_is_zero_and_what_is_not_there_is_none():
    truth, _ = scene(4)
    found = evaluate_detections(truth, [], ids(truth))
    for kind in ("bbox", "segm"):
        assert found[kind]["AP"] == found[kind]["AR100"] == 0
        assert {row["class"]: row["AP"] for row in found[kind]["per_class"]}["absent"] is None
    nothing = evaluate_detections({**truth, "annotations": []}, [], ids(truth), ("bbox",))
    assert all(nothing["bbox"][name] is None for name in MEASURES)


def test_images_that_were_not_looked_at_are_not_missed():
    truth, _ = scene(5)
    some = [each for each in perfect(truth) if each["image_id"] == 2]
    assert evaluate_detections(truth, some, [2])["bbox"]["AP"] == pytest.approx(1)
    assert evaluate_detections(truth, some, ids(truth))["bbox"]["AP"] < 0.9
    assert evaluate_detections(truth, some, [2, 2])["images"] == 1


def test_results_without_masks_are_judged_by_boxes():
    truth, results = scene(1)
    plain = [{name: value for name, value in each.items() if name != "segmentation"} for each in results]
    assert "segm" not in evaluate_detections(truth, plain, ids(truth))
    with_masks = evaluate_detections(truth, results, ids(truth))
    assert evaluate_detections(truth, plain, ids(truth))["bbox"] == with_masks["bbox"]


def test_a_results_file_of_masks_alone_needs_no_boxes():
    """As COCO's own examples are, in every spelling of a mask; the boxes are then those around the masks."""
    truth, results = scene(1)
    whole = [{**each, "bbox": [round(side) for side in each["bbox"]]} for each in results]
    known = evaluate_detections(truth, whole)
    bare = [{name: value for name, value in each.items() if name != "bbox"} for each in results]
    listed = [{**each, "segmentation": {**each["segmentation"], "counts": listed_counts(each)}} for each in bare]
    corners = [{**each, "segmentation": [polygon(*each["bbox"])]} for each in whole]
    assert evaluate_detections(truth, bare) == evaluate_detections(truth, listed) == known
    assert evaluate_detections(truth, corners)["segm"] == known["segm"] and known["segm"]["AP"] > 0.1


def listed_counts(entry):
    return counts_of(entry["segmentation"]).tolist()


def polygon(x, y, w, h):
    return [x, y, x + w, y, x + w, y + h, x, y + h]


def test_all_annotated_images_were_looked_at_if_nobody_says_which():
    truth, results = scene(5)
    assert evaluate_detections(truth, results) == evaluate_detections(truth, results, ids(truth))


def test_annotations_may_leave_out_what_they_may_and_those_of_other_images_do_not_matter():
    truth, results = scene(2)
    sparse = {**truth, "annotations": [dict(each) for each in truth["annotations"]]}
    for place, each in enumerate(sparse["annotations"]):
        each.update(area=None if each["area"] == each["bbox"][2] * each["bbox"][3] else each["area"])
        each.update(iscrowd=each["iscrowd"] or None, id=None if place % 2 else each["id"])
    sparse["annotations"].append({"image_id": 99, "category_id": 3, "bbox": [1, 1, 5, 5]})
    assert evaluate_detections(sparse, results, ids(truth)) == evaluate_detections(truth, results, ids(truth))


def test_masks_are_small_by_their_own_area():
    """A false detection with a small mask in a box of medium size spoils the small masks and no small box."""
    truth, _ = scene(0)
    small = {"image_id": 1, "category_id": 3, "bbox": [10, 10, 10, 10], "area": 100, "iscrowd": 0}
    truth["annotations"] = [{**small, "id": 1, "segmentation": rectangle(small["bbox"])}]
    right = {"image_id": 1, "category_id": 3, "bbox": [10, 10, 10, 10], "segmentation": rectangle(small["bbox"]), "score": 0.5}
    false = {**right, "bbox": [60, 60, 60, 60], "segmentation": rectangle([60, 60, 5, 5]), "score": 0.9}
    found = evaluate_detections(truth, [right, false], ids(truth))
    assert found["bbox"]["APs"] == pytest.approx(1) and found["segm"]["APs"] == pytest.approx(0.5)


def test_inputs_stay_as_they_are():
    truth, results = scene(2)
    before = json.dumps([truth, results])
    evaluate_detections(truth, results, ids(truth))
    assert json.dumps([truth, results]) == before


@pytest.mark.parametrize("first", [2**53, 2**60, 1_750_000_000_000_000_001, -3])
def test_any_whole_number_is_an_id(first):
    """Two images whose ids are the same number to a float stay two."""
    truth, results = scene(2)
    moved = json.loads(json.dumps([truth, results]))
    for entry in [*moved[0]["annotations"], *moved[1]]:
        entry.update(image_id=entry["image_id"] + first, category_id=entry["category_id"] + first)
    for entry in [*moved[0]["images"], *moved[0]["categories"]]:
        entry["id"] += first
    found, expected = evaluate_detections(*moved), evaluate_detections(truth, results)
    assert [row.pop("id") - first for kind in ("bbox", "segm") for row in found[kind]["per_class"]] == [3, 7, 50] * 2
    for kind in ("bbox", "segm"):
        for row in expected[kind]["per_class"]:
            del row["id"]
    assert found == expected


def test_wrong_annotations_are_named():
    """What the package would leave out, and so judge as if it were not there."""
    truth, results = scene(0)
    changes = {
        "image_id": ("1", "ground truth: annotation 0: it belongs to image '1'"),
        "category_id": ("3", "ground truth: annotation 0: it is of category '3'"),
        "bbox": (None, "ground truth: annotation 0: its bbox is None"),
        "segmentation": ({"size": [200, 220]}, "ground truth: annotation 0: its mask has a size and no counts"),
    }
    for name, (value, reason) in changes.items():
        first, *others = truth["annotations"]
        with pytest.raises(ValueError, match=reason):
            evaluate_detections({**truth, "annotations": [{**first, name: value}, *others]}, results)
    twice = {**truth, "categories": [*truth["categories"], {"id": 3, "name": "again"}]}
    for wrong, reason in ((twice, "has the id 3, which another"), ({"images": []}, "no list 'annotations'"), ([], "a list")):
        with pytest.raises(ValueError, match=f"ground truth: .*{reason}"):
            evaluate_detections(wrong, results)


def test_numbers_of_numpy_and_images_without_a_name_will_do():
    truth, results = scene(2)
    theirs = [{**entry, "image_id": np.int64(entry["image_id"]), "score": np.float32(entry["score"])} for entry in results]
    annotations = [{**entry, "bbox": np.array(entry["bbox"])} for entry in truth["annotations"]]
    nameless = {**truth, "images": [{**image, "file_name": None} for image in truth["images"]], "annotations": annotations}
    expected = evaluate_detections(truth, [{**entry, "score": float(np.float32(entry["score"]))} for entry in results])
    assert evaluate_detections(nameless, theirs) == expected


def test_ids_sizes_and_run_lengths_may_be_spelled_as_floats():
    truth, results = scene(2)
    spelled = json.loads(json.dumps(truth))
    for image in spelled["images"]:
        image.update(id=float(image["id"]), height=200.0, width=220.0)
    for entry in spelled["annotations"]:
        counts = counts_of(entry["segmentation"]).astype(float).tolist()
        entry.update(image_id=float(entry["image_id"]), segmentation={"size": [200, 220], "counts": counts})
    assert evaluate_detections(spelled, results) == evaluate_detections(truth, results)


def test_wrong_results_are_named():
    truth, results = scene(0)
    with pytest.raises(ValueError, match="results name COCO's ids, not labels"):
        evaluate_detections(truth, [{**results[0], "category_id": 0}], ids(truth))
    with pytest.raises(ValueError, match="a detection for image 3, which is not among those that were looked at"):
        evaluate_detections(truth, [{**results[0], "image_id": 3}], [1, 2])
    with pytest.raises(ValueError, match="image 9 was looked at, but it is not among the 3 annotated ones"):
        evaluate_detections(truth, [], [1, 9])
    with pytest.raises(ValueError, match="bbox or segm, not 'keypoints'"):
        evaluate_detections(truth, [], [1], ("keypoints",))
    first = results[0]
    for wrong, reason in (
        ("annotations", "detection 1 is 'annotations'; a results file is a list of"),
        ({name: value for name, value in first.items() if name != "score"}, "detection 1 has no score; it has image_id"),
        ({**first, "score": "0.5"}, "detection 1, in image 1, has the score '0.5', no number"),
        ({**first, "score": float("nan")}, "has the score nan"),
        ({**first, "score": 10**400}, "has the score 1000"),
        ({**first, "image_id": [1]}, r"has image_id and category_id \[1\] and"),
        ({**first, "category_id": None}, "and None; expected whole numbers"),
        ({**first, "segmentation": {"size": [200, 220]}}, "detection 1, in image 1: its mask has a size and no counts"),
        ({**first, "bbox": [1, 2, 3]}, r"has the bbox \[1, 2, 3\]; expected left, top, width, height"),
        ({**first, "bbox": [1, 2, float("nan"), 3]}, "has the bbox"),
        ({name: first[name] for name in ("image_id", "category_id", "score")}, "has neither bbox nor segmentation"),
        (
            {**first, "segmentation": {"size": [9, 9], "counts": [81]}},
            r"detection 1, in image 1: its mask has the size \[9, 9\]",
        ),
        ({**first, "segmentation": {"size": [200, 220], "counts": "ä"}}, "detection 1, in image 1: run lengths hold a letter"),
    ):
        with pytest.raises(ValueError, match=reason):
            evaluate_detections(truth, [wrong])


def test_without_the_extra_a_sentence_says_how_to_get_it(monkeypatch):
    truth, results = scene(0)
    for package in ("faster_coco_eval", "pycocotools"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=r"extra \[detect\]: pip install 'dynavit\[detect\]'"):
        evaluate_detections(truth, results, ids(truth))


def test_repeats_over_processes_count_once():
    found = without_repeats([(5, ["a"]), (2, ["b"]), (5, ["c"])])
    assert list(found.items()) == [(2, ["b"]), (5, ["a"])]
