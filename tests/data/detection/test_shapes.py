"""Shapes: the same picture for the same number, boxes and masks that fit exactly, sizes as asked for."""

import numpy as np
import pytest

from dynavit.data.config import DataConfig
from dynavit.data.detection.penn_fudan import extent
from dynavit.data.detection.shapes import KINDS, SEEN, Scene
from dynavit.data.open import open_data


def opened(**options):
    return open_data("shapes", None, DataConfig(options={"train": 6, "val": 2, "test": 3, **options}))


def test_a_picture_depends_on_its_number_alone():
    data, larger = opened(), opened(train=9, test=5)
    for split in ("train", "test"):
        for number in range(3):
            assert data.picture(split, number).tobytes() == larger.picture(split, number).tobytes()
    pictures = {data.picture(split, number).tobytes() for split in ("train", "val", "test") for number in range(2)}
    assert len(pictures) == 6
    assert opened(seed=1).picture("train", 0).tobytes() != data.picture("train", 0).tobytes()


def test_boxes_surround_masks_and_masks_do_not_overlap():
    for number in range(20):
        picture, labels, masks = Scene(kinds=6, most=6, noise=0).draw("train", number)
        assert len(labels) == len(masks) and np.sum(masks, axis=0).max(initial=0) <= 1
        ground = ~np.any(masks, axis=0)
        for mask in masks:  # shapes are bright, and the ground around them is dull
            colours = picture[mask].astype(float)
            assert colours.max(1).mean() - colours.min(1).mean() > 80
        if ground.any():
            dull = picture[ground].astype(float)
            assert (dull.max(1) - dull.min(1)).max() <= 55
    records = opened(kinds=6).splits["train"].records()
    for record in records:
        for box, mask in zip(record.boxes, record.masks(record.usable), strict=True):
            assert tuple(box) == extent(mask)
        assert record.areas.tolist() == [mask.sum() for mask in record.masks(record.usable)]


@pytest.mark.parametrize(
    ("kind", "area"),
    [
        ("disc", np.pi),
        ("square", 1.6**2),
        ("triangle", 3 * np.sqrt(3) * 0.6**2),
        ("ring", np.pi * 0.75),
        ("cross", 2 * 1.9 * 0.56 - 0.56**2),
        ("star", 10 * 0.5 * 0.45 * np.sin(np.pi / 5)),
    ],
)
def test_areas_of_the_shapes(kind, area):
    """In the plane, by counting a fine grid; only corners of the square lie outside of the unit circle."""
    grid = (np.arange(800) + 0.5) / 800 * 2.6 - 1.3
    u, v = np.meshgrid(grid, grid)
    inside = KINDS[kind](u, v)
    assert inside.mean() * 2.6**2 == pytest.approx(area, rel=0.01)
    assert np.hypot(u, v)[inside].max() <= 1.21


def test_hidden_shapes_are_seen_for_the_most_part(monkeypatch):
    placed, place = [], Scene._place
    monkeypatch.setattr(Scene, "_place", lambda *given: placed.append(place(*given)) or placed[-1])
    scene, shapes, hidden = Scene(size=64, most=12, fewest=12, smallest=20, largest=30), 0, 0
    for number in range(8):
        placed.clear()
        _, _, masks = scene.draw("train", number)
        for mask in masks:  # of all places that were tried, one was this shape's
            shares = [mask.sum() / whole.sum() for whole in placed if whole.sum() and not (mask & ~whole).any()]
            assert any(share >= SEEN for share in shares)
            shapes, hidden = shapes + 1, hidden + (max(shares) < 1)
    assert shapes > 30 and hidden > 5


def test_sizes_vary_on_demand():
    same, strongly = opened(), opened(train=60, vary=1.0)
    assert same.splits["train"].sizes.unique().tolist() == [128]
    sizes = strongly.splits["train"].sizes
    assert sizes.min() >= 64 and sizes.max() <= 256 and sizes.min() < 80 and sizes.max() > 220
    assert 10 < (sizes[:, 0] > sizes[:, 1]).sum() < 50
    for number in range(5):
        assert strongly.picture("train", number).size == tuple(sizes[number].flip(0).tolist())


def test_numbers_of_shapes():
    data = opened(train=12, fewest=0, most=1, kinds=1)
    counts = {len(record.boxes) for record in data.splits["train"].records()}
    assert counts == {0, 1} and data.classes == ["disc"] and data.category_ids == [1]


def test_ids_differ_over_splits():
    data = opened()
    ids = [image["id"] for split in data.splits for image in data.ground_truth(split)["images"]]
    assert len(set(ids)) == len(ids) == 11


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"size": 8}, "loading.options.size=8: a whole number at least 32"),
        ({"kinds": 9}, "loading.options.kinds=9"),
        ({"fewest": 5, "most": 2}, "fewest=5 is more than most=2"),
        ({"train": 0}, "loading.options.train=0"),
        ({"sise": 8}, "unknown option of the data set shapes 'sise'.*size"),
    ],
)
def test_wrong_options_are_named(options, reason):
    with pytest.raises(ValueError, match=reason):
        opened(**options)
    with pytest.raises(ValueError, match="leave --data-dir out"):
        open_data("shapes", "somewhere")
