"""COCO and folders of one's own: where files are found, what is trained on, what is said."""

import json
import shutil

import pytest
import torch
from PIL import Image

from data.detection.made_up_coco import NAMES, content, write_coco, write_images
from dynavit.common.data import LoaderOptions
from dynavit.data.config import AugmentConfig, DataConfig
from dynavit.data.open import open_data

QUICK = {"short": 32, "long": 64}


def opened(folder, name="coco", **options):
    given = {key: options.pop(key) for key in ("val_fraction", "limit", "strict", "image_size", "crop_pct") if key in options}
    return open_data(name, folder, DataConfig(workers=0, options={**QUICK, **options}, **given))


def batches(data, split="val", train=False, **how):
    wanted = LoaderOptions(train=train, **{"batch_size": 2, "augment": AugmentConfig(), "config": DataConfig(workers=0), **how})
    return [batch for step in data.loader(split, wanted).epoch() for batch in step]


def test_the_official_layout(tmp_path):
    data = opened(write_coco(tmp_path))
    assert data.task == "detection" and data.name == "coco" and not data.has_masks
    assert data.classes == ["person", "stop sign", "toothbrush"] and data.category_ids == [1, 13, 90]
    assert len(data.splits["val"]) == 4  # all of them are judged
    assert len(data.splits["train"]) == 3  # the empty one is not trained on
    assert any("1 images without boxes" in note for note in data.notes)
    assert any("leaves out 3 boxes" in note for note in data.notes)
    assert len(opened(tmp_path, keep_empty=True).splits["train"]) == 4


def test_images_of_every_kind_are_read(tmp_path):
    """Grey ones, those in folders of their own, those without objects."""
    data = opened(write_coco(tmp_path))
    found = {target["image_id"]: (batch, place) for batch in batches(data) for place, target in enumerate(batch.targets)}
    assert set(found) == set(NAMES)
    batch, place = found[139]
    pixels = batch.inputs["images"][place, :, :4, :4].double() * torch.tensor(data.std)[:, None, None]
    pixels += torch.tensor(data.mean)[:, None, None]
    assert torch.allclose(pixels[0], pixels[1], atol=1e-5)  # grey
    target = batch.targets[place]
    assert target["labels"].tolist() == [1] and target["crowd_boxes"].shape == (1, 4) and target["masks"] is None
    batch, place = found[285]
    assert batch.targets[place]["boxes"].shape == (0, 4)


def test_masks_on_demand(tmp_path):
    data = opened(write_coco(tmp_path), masks=True)
    assert data.has_masks
    for batch in batches(data):
        for target, (height, width) in zip(batch.targets, batch.inputs["sizes"].tolist(), strict=True):
            assert target["masks"].shape == (len(target["boxes"]), height, width)
    assert not data.with_masks(False).has_masks and opened(tmp_path).with_masks(True).has_masks


def test_exif_is_ignored(tmp_path):
    """Annotations count stored pixels."""
    write_coco(tmp_path)
    file = tmp_path / "val2017" / "a.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # on its side
    Image.open(file).save(file, exif=exif)
    (target,) = [t for batch in batches(opened(tmp_path)) for t in batch.targets if t["image_id"] == 7]
    assert target["original_size"] == (40, 60)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_another_size_than_annotated_is_an_error(tmp_path, workers):
    write_coco(tmp_path)
    Image.new("RGB", (40, 60)).save(tmp_path / "val2017" / "a.jpg")
    with pytest.raises(ValueError, match=r"a.jpg: the image has 60 x 40 pixels .* for 40 x 60; if EXIF turns it, store it"):
        batches(opened(tmp_path), config=DataConfig(workers=workers))
    Image.new("RGB", (60, 41)).save(tmp_path / "val2017" / "a.jpg")
    with pytest.raises(ValueError, match=r"a.jpg: the image has 41 x 60 pixels .* for 40 x 60$"):
        batches(opened(tmp_path), config=DataConfig(workers=workers))


def test_a_broken_image_is_left_out_and_named(tmp_path):
    write_coco(tmp_path)
    (tmp_path / "val2017" / "a.jpg").write_bytes(b"nothing")
    found = batches(opened(tmp_path))
    assert next(message for batch in found for message in batch.broken).startswith("cannot read image")
    assert {target["image_id"] for batch in found for target in batch.targets} == {139, 285, 5000}
    assert sum(batch.count for batch in found) == 3
    with pytest.raises(ValueError, match="without --strict it would be left out"):
        batches(opened(tmp_path), config=DataConfig(workers=0, strict=True))


def test_a_batch_of_broken_images_still_runs(tmp_path):
    write_coco(tmp_path)
    for name in NAMES.values():
        (tmp_path / "val2017" / name).write_bytes(b"nothing")
    for batch in batches(opened(tmp_path)):
        assert batch.count == 0 and batch.inputs["images"].shape == (1, 3, 32, 32) and len(batch.targets) == 1


def test_other_places_of_images(tmp_path):
    """images/NAME and images, and one split alone."""
    write_coco(tmp_path, ("val2014",))
    (tmp_path / "images").mkdir()
    shutil.move(tmp_path / "val2014", tmp_path / "images" / "val2014")
    assert list(opened(tmp_path).splits) == ["val"]
    for file in (tmp_path / "images" / "val2014").iterdir():
        shutil.move(file, tmp_path / "images")
    (tmp_path / "images" / "val2014").rmdir()
    assert list(opened(tmp_path).splits) == ["val"]


def moved(annotations):
    return [{**entry, "bbox": [entry["bbox"][0] + 1, *entry["bbox"][1:]]} for entry in annotations]


def test_images_in_both_splits_are_told_with_every_result(tmp_path):
    """In COCO128 they are the same files. Copies in another folder have the same names, sizes and boxes; one without boxes,
    named 0001.jpg as many are, may be another."""
    write_coco(tmp_path, ("train2017",))
    other = {**content(), "annotations": moved(content()["annotations"])}
    (tmp_path / "annotations" / "instances_val2017.json").write_text(json.dumps(other))
    write_images(tmp_path / "val2017")
    assert opened(tmp_path).caution == ""
    (tmp_path / "annotations" / "instances_val2017.json").write_text(json.dumps(content()))
    assert "3 of 4 images of val are training images too" in opened(tmp_path).caution
    for name in ("train2017", "val2017"):
        shutil.rmtree(tmp_path / name)
    write_images(tmp_path / "images")
    assert "4 of 4 images of val are training images too" in opened(tmp_path).caution


def test_a_year_goes_before_other_names(tmp_path):
    """The old splits of val2014 are no data sets of their own: their images lie in val2014."""
    write_coco(tmp_path, ("train2014", "val2014"))
    for name in ("valminusminival2014", "val2012"):
        (tmp_path / "annotations" / f"instances_{name}.json").write_text("[]")
    data = opened(tmp_path)
    assert len(data.splits["val"]) == 4
    assert (
        "val: annotations are instances_val2014.json, not instances_val2012.json, instances_valminusminival2014.json"
        in data.notes
    )
    shutil.move(tmp_path / "annotations" / "instances_val2014.json", tmp_path / "annotations" / "instances_val_mine.json")
    (tmp_path / "annotations" / "instances_val2012.json").unlink()
    (tmp_path / "annotations" / "instances_valminusminival2014.json").unlink()
    shutil.move(tmp_path / "val2014", tmp_path / "val_mine")
    assert len(opened(tmp_path).splits["val"]) == 4


def test_the_plain_name_goes_before_all(tmp_path):
    write_coco(tmp_path, ("train", "val"))
    for name in ("train_old", "train2009"):
        (tmp_path / "annotations" / f"instances_{name}.json").write_text("[]")
    assert len(opened(tmp_path).splits["train"]) == 3


def test_objects_without_masks_do_not_become_background(tmp_path):
    """An image none of whose objects has a mask is left out where masks are learned, also where empty ones are kept."""
    bare = content()
    bare["annotations"] = [
        {**entry, "segmentation": None} if entry["image_id"] == 5000 else entry for entry in bare["annotations"]
    ]
    write_coco(tmp_path)
    (tmp_path / "annotations" / "instances_train2017.json").write_text(json.dumps(bare))
    for keep_empty, kept in ((False, [7, 139]), (True, [7, 139, 285])):
        data = opened(tmp_path, masks=True, keep_empty=keep_empty)
        assert [record.id for record in data.splits["train"].records()] == kept
        assert "training leaves out 1 images none of whose objects has a mask" in data.notes
    assert len(opened(tmp_path).splits["train"]) == 3


def test_a_mask_that_covers_nothing_is_not_learned(tmp_path):
    flat = content()
    flat["annotations"][0] |= {"segmentation": [[5, 5, 6, 6, 7, 7]]}
    write_coco(tmp_path)
    (tmp_path / "annotations" / "instances_val2017.json").write_text(json.dumps(flat))
    data = opened(tmp_path, masks=True)
    first = next(target for batch in batches(data) for target in batch.targets if target["image_id"] == 7)
    assert first["labels"].tolist() == [2] and first["masks"].flatten(1).any(1).all() and len(first["boxes"]) == 1


def test_nothing_to_learn_is_explained(tmp_path):
    useless = content()
    for entry in useless["annotations"]:
        entry["area"] = 0
    write_coco(tmp_path)
    (tmp_path / "annotations" / "instances_train2017.json").write_text(json.dumps(useless))
    reasons = "1 images without boxes .*; training leaves out 3 images none of whose boxes can be learned; .* 7 boxes that lie"
    with pytest.raises(ValueError, match=f"no training image is left: .*{reasons}"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (lambda folder: shutil.rmtree(folder / "annotations"), "holds no annotations/instances_train"),
        (lambda folder: shutil.rmtree(folder / "val2017"), "there is no folder of images"),
        (lambda folder: (folder / "val2017" / "c.png").unlink(), "there is no image .*c.png, which image 5000"),
        (
            lambda folder: (folder / "annotations" / "instances_val2017.json").write_text(
                json.dumps({**content(), "annotations": [], "categories": [{"id": 1, "name": "person"}]})
            ),
            "different categories",
        ),
    ],
)
def test_what_is_missing_is_named(tmp_path, break_it, reason):
    write_coco(tmp_path)
    break_it(tmp_path)
    with pytest.raises(ValueError, match=reason):
        opened(tmp_path)


def test_options_that_do_not_fit(tmp_path):
    write_coco(tmp_path)
    with pytest.raises(ValueError, match="in place of image_size say --loading.options.short"):
        opened(tmp_path, image_size=32)
    with pytest.raises(ValueError, match="leave crop_pct out"):
        opened(tmp_path, crop_pct=0.9)
    with pytest.raises(ValueError, match="needs --data-dir"):
        opened(None)
    for option, value in {"short": "x", "eval_batch": 1.5, "masks": "no"}.items():
        with pytest.raises(ValueError, match=f"loading.options.{option}="):
            opened(tmp_path, **{option: value})
    with pytest.raises(ValueError, match="loading.options.annotations=3: a text"):
        opened(tmp_path, "detection_folder", annotations=3)
    with pytest.raises(ValueError, match="augment.mixup is about images with one class"):
        batches(opened(tmp_path), "train", train=True, augment=AugmentConfig(mixup=0.5))
    with pytest.raises(ValueError, match="recipe=deit"):
        batches(opened(tmp_path), "train", train=True, augment=AugmentConfig(recipe="deit"))


# ---- A folder of one's own


def test_one_file_is_cut_into_splits(tmp_path):
    write_images(tmp_path)
    (tmp_path / "mine.json").write_text(json.dumps(content()))
    data = opened(tmp_path, "detection_folder", val_fraction=0.25, test_fraction=0.25, keep_empty=True)
    sizes = {name: len(split) for name, split in data.splits.items()}
    assert sizes == {"train": 2, "val": 1, "test": 1}
    assert {record.id for split in data.splits.values() for record in split.records()} == set(NAMES)
    again = opened(tmp_path, "detection_folder", val_fraction=0.25, test_fraction=0.25, keep_empty=True)
    assert [r.id for r in again.splits["test"].records()] == [r.id for r in data.splits["test"].records()]


def test_images_and_annotations_elsewhere(tmp_path):
    write_images(tmp_path / "images")
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "mine.json").write_text(json.dumps(content()))
    assert len(opened(tmp_path, "detection_folder", val_fraction=0).splits["train"]) == 3
    shutil.move(tmp_path / "images", tmp_path / "photos")
    with pytest.raises(ValueError, match="say where images are with --loading.options.images"):
        opened(tmp_path, "detection_folder")
    found = opened(tmp_path, "detection_folder", images="photos", annotations="annotations/mine.json", val_fraction=0)
    assert len(found.splits["train"]) == 3
    (tmp_path / "annotations" / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="holds 2 annotation files .* name one with --loading.options.annotations"):
        opened(tmp_path, "detection_folder")


def test_a_folder_with_splits(tmp_path):
    for folder in ("train", "valid", "test"):
        write_images(tmp_path / folder)
        (tmp_path / folder / "_annotations.coco.json").write_text(json.dumps(content()))
    data = opened(tmp_path, "detection_folder")
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 3, "val": 4, "test": 4}
    shutil.copytree(tmp_path / "valid", tmp_path / "val")
    with pytest.raises(ValueError, match="/val and .*/valid are both folders of val; keep one of them"):
        opened(tmp_path, "detection_folder")
    assert opened(tmp_path, "detection_folder", annotations="train/_annotations.coco.json", images="train").splits


# ---- What a run stores


def test_description_brings_inputs_back(tmp_path):
    write_coco(tmp_path)
    data = opened(tmp_path)
    facts = json.loads(json.dumps(data.describe()))
    assert facts["classes"] == data.classes and facts["category_ids"] == [1, 13, 90] and facts["short"] == 32
    other = opened(tmp_path, short=48, long=None).prepared_as(facts, "run")
    assert other.preparation == data.preparation
    anything = {name: value for name, value in facts.items() if name != "classes"}  # of a model that is asked for features
    assert data.prepared_as(anything, "run").preparation == data.preparation
    with pytest.raises(ValueError, match="coco has 3 classes, the model of run tells 2 apart"):
        data.prepared_as({**facts, "classes": ["a", "b"]}, "run")


def test_subset_and_limit(tmp_path):
    write_coco(tmp_path)
    data = opened(tmp_path)
    few = data.subset("val", torch.tensor([3, 1]))
    assert [image["id"] for image in few.ground_truth("val")["images"]] == [5000, 139]
    assert len(few.splits["train"]) == 3 and len(data.splits["val"]) == 4
    assert data.picture("val", 0).size == (60, 40)
    limited = opened(tmp_path, limit=2)
    assert len(limited.splits["train"]) == 2 and "training uses 2 of 3 images" in limited.notes
