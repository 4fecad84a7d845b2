"""Preparing an image file for a bundle gives what the training room's evaluation gives."""

import numpy as np
import pytest
import torch
from PIL import Image

from dynavit.data.preprocess import preprocess
from dynavit.data.read_image import read_image
from dynavit.deploy.bundle.prepare import prepare, read_rgb


def noise(mode, size, seed=0):
    """A PIL image of this (width, height)."""
    rng = np.random.default_rng(seed)
    if mode == "I;16":
        return Image.fromarray(rng.integers(0, 65536, size[::-1], dtype=np.uint16))
    return Image.fromarray(rng.integers(0, 256, (*size[::-1], 4), dtype=np.uint8), "RGBA").convert(mode)


def described(kind, image_size, channels=3, stored=(8, 8)):
    colours = {"mean": [0.3, 0.4, 0.5][:channels], "std": [0.2, 0.3, 0.4][:channels]}
    if kind == "memory":
        return {"kind": kind, "stored_size": list(stored), "image_size": list(image_size), **colours}
    crop = 1.0 if min(image_size) <= 64 else 0.875
    return {"kind": kind, "image_size": list(image_size), "crop_pct": crop, "interpolation": "bicubic", **colours}


@pytest.mark.parametrize("image_size", [(96, 96), (24, 24), (72, 88)])
@pytest.mark.parametrize("size", [(120, 91), (37, 200), (96, 96), (20, 31)])
@pytest.mark.parametrize("channels", [1, 3])
def test_files(tmp_path, image_size, size, channels):
    noise("RGB", size).save(tmp_path / "x.png")
    description = described("files", image_size, channels)
    expected = preprocess(tmp_path / "x.png", description).numpy()
    found = prepare(tmp_path / "x.png", description)
    assert found.dtype == np.float32 and found.shape == (channels, *image_size)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("image_size", [(8, 8), (10, 11), (20, 20), (17, 30), (4, 4), (3, 5)])  # as is, padded, grown, shrunk
@pytest.mark.parametrize("channels", [1, 3])
def test_sets_in_memory(tmp_path, image_size, channels):
    noise("RGB", (13, 9)).save(tmp_path / "x.png")
    description = described("memory", image_size, channels)
    expected = preprocess(tmp_path / "x.png", description).numpy()
    assert np.allclose(prepare(tmp_path / "x.png", description), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "I;16"])
def test_modes(tmp_path, mode):
    path = tmp_path / ("x.tif" if mode == "CMYK" else "x.png")
    noise(mode, (12, 7)).save(path)
    assert np.array_equal(np.asarray(read_rgb(path)), np.asarray(read_image(path)))


def test_a_palette_with_transparency(tmp_path):
    noise("P", (12, 7)).save(tmp_path / "x.png", transparency=3)
    assert np.array_equal(np.asarray(read_rgb(tmp_path / "x.png")), np.asarray(read_image(tmp_path / "x.png")))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    noise("RGB", (6, 4)).save(tmp_path / "x.png", exif=exif)
    ours, theirs = np.asarray(read_rgb(tmp_path / "x.png")), np.asarray(read_image(tmp_path / "x.png"))
    assert np.array_equal(ours, theirs) and (ours.shape[:2] == (6, 4)) == (orientation > 4)


def test_what_is_no_image(tmp_path):
    (tmp_path / "x.png").write_bytes(b"no image")
    Image.fromarray(torch.rand(3, 3).numpy()).save(tmp_path / "f.tif")
    for name in ("x.png", "absent.png", "f.tif"):
        messages = []
        for read in (read_rgb, read_image):
            with pytest.raises(ValueError) as caught:
                read(tmp_path / name)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
        assert messages[0].startswith(f"cannot read image {tmp_path / name}: ")
