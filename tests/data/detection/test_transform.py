"""Images, boxes and masks go the same way: resized, mirrored, padded."""

import random

import numpy as np
import pytest
import torch
from PIL import Image

from data.detection.made_up_coco import disc
from dynavit.data.detection.penn_fudan import extent
from dynavit.data.detection.record import Record
from dynavit.data.detection.rle import encode
from dynavit.data.detection.transform import (
    Preparation,
    Transform,
    WrongSize,
    joined,
    joined_or_wrong,
    mirrored,
    prepared,
)

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


def picture(height, width, *masks):
    """An image whose pixels are bright inside the masks, with these objects."""
    bright = np.any(masks, axis=0) if masks else np.zeros((height, width), bool)
    image = Image.fromarray((bright[..., None] * np.array([200, 220, 240])).astype(np.uint8))
    boxes = np.array([extent(mask) for mask in masks], np.float64).reshape(-1, 4)
    areas = np.array([mask.sum() for mask in masks], np.float64)
    labels, crowd = np.arange(len(masks)), np.zeros(len(masks), bool)
    return image, Record(5, "x.png", "x.png", height, width, boxes, labels, areas, crowd, [encode(mask) for mask in masks])


def two_discs(height=60, width=90):
    return picture(height, width, disc(height, width, 20, 30, 12), disc(height, width, 40, 70, 8))


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((480, 640), (800, 1067)),
        ((640, 480), (1067, 800)),
        ((300, 1000), (400, 1333)),
        ((1, 1000), (1, 1333)),
        ((800, 800), (800, 800)),
    ],
)
def test_short_side_unless_the_long_one_is_too_long(size, expected):
    assert Preparation(800, 1333, MEAN, STD).size_of(*size) == expected
    short, long = min(size), max(size)
    scale = min(800 / short, 1333 / long)
    assert expected == tuple(max(1, int(side * scale + 0.5)) for side in size)


def test_without_limits_images_keep_their_size():
    assert Preparation(None, None, MEAN, STD).size_of(33, 47) == (33, 47)
    assert Preparation(None, 40, MEAN, STD).size_of(20, 80) == (10, 40)
    assert Preparation(None, 400, MEAN, STD).size_of(20, 80) == (20, 80)


def test_pixels_are_normalised():
    image, record = two_discs()
    pixels, _ = prepared(image, record, Preparation(None, None, MEAN, STD), masks=False)
    plain = np.asarray(image) / 255
    assert torch.allclose(pixels.double().permute(1, 2, 0), torch.from_numpy((plain - MEAN) / STD), atol=1e-6)


@pytest.mark.parametrize("short", [37, 60, 133])
def test_resized_boxes_surround_resized_masks(short):
    """Within a pixel; each axis has its own scale, since sides are rounded."""
    image, record = two_discs(60, 91)
    pixels, target = prepared(image, record, Preparation(short, None, MEAN, STD), masks=True)
    height, width = pixels.shape[-2:]
    assert target["scale"] == (height / 60, width / 91) and target["original_size"] == (60, 91)
    assert target["masks"].shape == (2, height, width) and target["masks"].dtype == torch.bool
    for box, mask in zip(target["boxes"], target["masks"], strict=True):
        x, y, w, h = extent(mask.numpy())
        assert (box - torch.tensor([x, y, x + w, y + h])).abs().max() <= max(1, 0.5 * height / 60 + 0.5)
    exact = torch.tensor(record.corners * np.array([width / 91, height / 60, width / 91, height / 60])).float()
    assert torch.equal(target["boxes"], exact)


def test_masks_take_the_pixel_below_their_centre():
    image, record = two_discs()
    mask = record.masks(record.usable)[0]
    _, target = prepared(image, record, Preparation(41, None, MEAN, STD), masks=True)
    found = target["masks"][0].numpy()
    for row in range(found.shape[0]):
        for column in range(found.shape[1]):
            below = mask[int((row + 0.5) * 60 / found.shape[0]), int((column + 0.5) * 90 / found.shape[1])]
            assert found[row, column] == below


def test_mirrored_twice_is_the_same_and_once_is_a_mirrored_picture():
    image, record = two_discs()
    how = Preparation(None, None, MEAN, STD)
    sample = prepared(image, record, how, masks=True)
    once, twice = mirrored(sample), mirrored(mirrored(sample))
    assert torch.equal(twice[0], sample[0]) and once[1]["flipped"] and not twice[1]["flipped"]
    for name in ("boxes", "masks", "labels", "crowd_boxes"):
        assert torch.equal(twice[1][name], sample[1][name])
    turned = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    masks = [mask[:, ::-1] for mask in record.masks(record.usable)]
    of_turned = prepared(turned, picture(60, 90, *masks)[1], how, masks=True)
    assert torch.equal(once[0], of_turned[0])
    assert torch.equal(once[1]["boxes"], of_turned[1]["boxes"]) and torch.equal(once[1]["masks"], of_turned[1]["masks"])


def test_an_image_without_objects_has_empty_tensors():
    pixels, target = prepared(*picture(40, 50), Preparation(80, None, MEAN, STD), masks=True)
    assert pixels.shape == (3, 80, 100)
    shapes = {name: tuple(target[name].shape) for name in ("boxes", "labels", "masks", "crowd_boxes")}
    assert shapes == {"boxes": (0, 4), "labels": (0,), "masks": (0, 80, 100), "crowd_boxes": (0, 4)}
    assert target["boxes"].dtype == target["crowd_boxes"].dtype == torch.float32 and target["labels"].dtype == torch.int64


def test_objects_without_a_mask_are_left_out_only_where_masks_are_wanted():
    image, record = two_discs()
    record = Record(**{**vars(record), "segments": [record.segments[0], None]})
    how = Preparation(None, None, MEAN, STD)
    assert prepared(image, record, how, masks=False)[1]["labels"].tolist() == [0, 1]
    with_masks = prepared(image, record, how, masks=True)[1]
    assert with_masks["labels"].tolist() == [0] and len(with_masks["masks"]) == len(with_masks["boxes"]) == 1


def test_joined_images_are_padded_at_right_and_bottom():
    how = Preparation(None, None, MEAN, STD)
    samples = [prepared(*two_discs(60, 90), how, masks=True), prepared(*picture(70, 33), how, masks=True)]
    inputs, targets = joined(samples)
    assert inputs["images"].shape == (2, 3, 96, 96)
    assert inputs["sizes"].tolist() == [[60, 90], [70, 33]] and inputs["sizes"].dtype == torch.int64
    for image, (height, width), (pixels, _) in zip(inputs["images"], inputs["sizes"], samples, strict=True):
        assert torch.equal(image[:, :height, :width], pixels)
        assert not image[:, height:].any() and not image[:, :, width:].any()
    assert [len(target["boxes"]) for target in targets] == [2, 0]


def test_half_of_the_samples_are_mirrored_by_the_global_generator():
    transform = Transform(Preparation(None, None, MEAN, STD), "train", masks=False, flip=True)
    random.seed(3)
    flips = [transform(two_discs())[1]["flipped"] for _ in range(60)]
    random.seed(3)
    assert [transform(two_discs())[1]["flipped"] for _ in range(60)] == flips
    assert 15 < sum(flips) < 45


def test_a_wrong_size_is_an_error_with_the_name_of_the_file():
    image, record = two_discs()
    transform = Transform(Preparation(None, None, MEAN, STD), "train", masks=False)
    wrong = transform((image.resize((60, 90)), record))
    assert isinstance(wrong, WrongSize) and "x.png: the image has 90 x 60 pixels" in wrong.message
    assert joined_or_wrong([transform((image, record)), wrong]) is wrong
