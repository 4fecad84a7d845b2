"""ImageNet-C's elastic transform against its formula, an affine map through three points, then displacements."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from data.corruptions.images import photos
from dynavit.data.corruptions.digital import _moved, elastic_transform
from dynavit.data.corruptions.filters import smooth
from dynavit.data.corruptions.random import Numbers
from dynavit.data.corruptions.severities import LARGE

UNIT = 244.0  # px, on images of 224


def numbers(count: int = 2, seed: int = 3) -> Numbers:
    return Numbers(seed, torch.arange(count))


def mirrored(place: int, side: int, edge: bool) -> int:
    """The pixel that a mirror at the edge shows: of a b c, beyond the right one c b a with the edge, b a without it."""
    while not 0 <= place < side:
        place = (-1 - place if edge else -place) if place < 0 else (2 * side - 1 - place if edge else 2 * side - 2 - place)
    return place


def at(image: np.ndarray, row: float, column: float, edge: bool) -> np.ndarray:
    """(c,) of an image (c, h, w), between pixels by their distance."""
    h, w = image.shape[1:]
    top, left = math.floor(row), math.floor(column)
    value = np.zeros(len(image))
    for r, c in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
        weight = (1 - abs(row - r)) * (1 - abs(column - c))
        value += weight * image[:, mirrored(r, h, edge), mirrored(c, w, edge)]
    return value


def resampled(image: np.ndarray, places: np.ndarray, edge: bool) -> np.ndarray:
    """places (h, w, 2): where each pixel comes from."""
    return np.stack([[at(image, *place, edge) for place in line] for line in places]).transpose(2, 0, 1)


def affine_through(before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(2, 2), (2,): the linear part and the shift that send three points (3, 2) to three others, by differences."""
    linear = np.stack([after[1] - after[0], after[2] - after[0]], 1) @ np.linalg.inv(
        np.stack([before[1] - before[0], before[2] - before[0]], 1)
    )
    return linear, after[0] - linear @ before[0]


def corners_of(h: int, w: int) -> np.ndarray:
    middle, reach = np.array([h // 2, w // 2]), min(h, w) // 3
    return middle + reach * np.array([[1, 1], [-1, 1], [-1, -1]])


@pytest.mark.parametrize("shape", [(22, 22), (17, 26)])
def test_the_affine_map_moves_three_corners_and_mirrors_without_the_edge(shape):
    h, w = shape
    x = photos(2, h, w).double() / 255
    moves = 9.0 * (2 * numbers().uniform(3, 2, stream=1).numpy() - 1)
    seen = []
    for image, result, move in zip(x.numpy(), _moved(x, numbers(), 9.0).numpy(), moves, strict=True):
        linear, shift = affine_through(corners_of(h, w) + move, corners_of(h, w).astype(float))
        places = np.array([[linear @ (r, c) + shift for c in range(w)] for r in range(h)])
        seen += [places.min(), places.max()]
        np.testing.assert_allclose(result, resampled(image, places, edge=False), atol=1e-12)
        theirs = np.stack([ndimage.affine_transform(each, linear, shift, order=1, mode="mirror") for each in image])
        np.testing.assert_allclose(result, theirs, atol=1e-12)
    assert min(seen) < -1 and max(seen) > max(shape), "borders are seen"


def test_corners_that_stay_leave_the_image():
    x = photos(1, 20, 24).double() / 255
    assert torch.allclose(_moved(x, numbers(1), 0.0), x, atol=1e-12)


@pytest.mark.parametrize("severity", range(1, 6))
def test_strengths_are_those_of_the_benchmark(severity):
    displaced, smoothed, moved = [(2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)][
        severity - 1
    ]
    pixels = [224 * part for part in LARGE["elastic_transform"][severity - 1]]
    assert pixels == pytest.approx([UNIT * displaced, UNIT * smoothed, UNIT * moved])


@pytest.mark.parametrize("severity", [1, 2, 5])
def test_it_is_the_formula(severity):
    """On an image of 28 px, an eighth of 224, so lengths are an eighth too."""
    side = 28
    displaced, smoothed, moved = (side * part for part in LARGE["elastic_transform"][severity - 1])
    x = photos(1, side, side).double() / 255
    move = moved * (2 * numbers(1).uniform(3, 2, stream=1).numpy()[0] - 1)
    linear, shift = affine_through(corners_of(side, side) + move, corners_of(side, side).astype(float))
    image = resampled(x[0].numpy(), np.array([[linear @ (r, c) + shift for c in range(side)] for r in range(side)]), edge=False)
    noise = 2 * numbers(1).uniform(2, side, side).numpy()[0] - 1
    down, right = (displaced * ndimage.gaussian_filter(each, smoothed, mode="reflect", truncate=3.0) for each in noise)
    row, column = np.mgrid[:side, :side]
    expected = resampled(image, np.stack([row + down, column + right], -1), edge=True)
    found = elastic_transform(x, numbers(1), *LARGE["elastic_transform"][severity - 1])[0].numpy()
    np.testing.assert_allclose(found, expected, atol=1e-10)
    assert np.abs(found - x[0].numpy()).mean() > 0.01


@pytest.mark.parametrize(("border", "mode"), [("edge", "nearest"), ("mirror", "reflect"), ("mirror_without_edge", "mirror")])
@pytest.mark.parametrize("sigma", [(0.7, 1.5), (30.0, 12.0)])
def test_smoothing_and_its_borders(border, mode, sigma):
    """The wide one reaches beyond the image several times."""
    x = torch.rand(2, 3, 9, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    theirs = ndimage.gaussian_filter(x.numpy(), (0, 0, *sigma), mode=mode, truncate=3.0)
    np.testing.assert_allclose(smooth(x, sigma, border, cut=3.0).numpy(), theirs, atol=1e-12)
