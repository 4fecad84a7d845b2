"""Sections of detection from stored evaluations."""

from pathlib import Path

import pytest
from PIL import Image

from dynavit.analysis.detection_examples import stored_example
from dynavit.analysis.report.page import render
from dynavit.analysis.report.read import Inside, Run
from dynavit.analysis.report.sections.detection import run_sections

MEASURES = dict.fromkeys(("AP", "AP50", "AP75", "APs", "APm", "AR1", "AR10", "AR100"), 0.5) | {"APl": None}


def evaluation(**changes):
    truth = {"boxes": [[10, 10, 60, 60], [100, 20, 140, 60]], "labels": [0, 1], "masks": None}
    found = {"boxes": [[12, 10, 60, 60], [100, 20, 140, 60], [70, 70, 90, 90]], "labels": [0, 0, 1], "scores": [0.9, 0.8, 0.7]}
    per_class = [{"class": name, "id": 1, "objects": 4, **MEASURES} for name in ("cat", "dog")]
    return {
        "classes": ["cat", "dog"],
        "split": "test",
        "samples": 3,
        "coco": {"images": 3, "bbox": {**MEASURES, "per_class": per_class}},
        "errors": {"score": 0.5, "right": 1, "wrong class": 1, "background": 1, "missed": 1},
        "samples_shown": [stored_example("a.png", Image.new("RGB", (160, 100)), found, truth)],
        **changes,
    }


def run(**changes):
    return Run("x", Path("x"), {}, {}, [], {"test": evaluation(**changes)}, {}, {}, {}, Inside("", Path(), {}, {}), True)


def test_tables_a_sheet_and_a_gallery():
    detections, pictures = run_sections(run())
    overall, of_class, errors = detections.blocks
    assert overall.rows == [["box", "50.0", "50.0", "50.0", "50.0", "50.0", "50.0", "50.0", "50.0", "–"]]
    assert [row[:2] for row in of_class.rows] == [["cat", "4"], ["dog", "4"]] and not of_class.summary
    assert ["missed", "1"] in errors.rows and errors.notes
    sheet, *gallery = pictures.blocks
    assert len(sheet.pictures) == 1 and sheet.pictures[0].label == "a.png: 1 right, 1 wrong class, 1 background, 1 missed"
    captions = [[picture.caption for picture in block.pictures] for block in gallery]
    assert captions == [["cat 0.90"], ["cat 0.80, not dog"], ["dog 0.70"], ["dog"]]
    assert [block.caption.partition(" in these")[0] for block in gallery] == ["Right", "Wrong class", "Background", "Missed"]


def test_what_is_not_stored_is_left_out():
    assert len(run_sections(run(samples_shown=[]))) == 1
    (section,) = run_sections(run(samples_shown=[], coco={}, errors={}))
    assert section.blocks == []
    (section, *_) = run_sections(run(caution="3 of 3 images of test are training images too"))
    assert "are training images too" in section.blocks[0].text


def test_many_classes_are_folded_away():
    per_class = [{"class": str(number), "id": number, "objects": 1, **MEASURES} for number in range(80)]
    blocks = run_sections(run(coco={"images": 3, "bbox": {**MEASURES, "per_class": per_class}}))[0].blocks
    assert blocks[1].summary and not blocks[0].summary


def test_a_damaged_file_is_named():
    with pytest.raises(ValueError, match=r"test.json.*samples_shown\[0\].found"):
        run_sections(
            run(samples_shown=[{"name": "a", "image": "data:image/png,", "found": 3, "truth": {"boxes": [], "labels": []}}])
        )


def test_the_page_shows_pictures_with_a_text_for_those_who_cannot_see_them():
    page = render("x", "", run_sections(run()))
    assert page.count('<img src="data:image/jpeg') == 5 and 'alt="a.png: 1 right' in page
    assert 'class="pictures small-ones"' in page
