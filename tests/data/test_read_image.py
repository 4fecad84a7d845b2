"""Images of every kind as RGB, and errors that name the file."""

import io

import numpy as np
import pytest
from PIL import Image

from data.image_files import write_image
from dynavit.data.read_image import read_image

GREY = np.arange(256, dtype=np.uint8).reshape(16, 16)


def saved(image: Image.Image, kind: str = "png", **options: object) -> np.ndarray:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    read = read_image(io.BytesIO(buffer.getvalue()))
    assert read.mode == "RGB"
    return np.asarray(read)


def test_rgb_and_grey_come_back_as_they_are(tmp_path):
    path = write_image(tmp_path / "a.png", 0, (5, 7))
    with Image.open(path) as image:
        assert (np.asarray(read_image(path)) == np.asarray(image)).all()
    assert (saved(Image.fromarray(GREY)) == GREY[..., None]).all()
    assert (saved(Image.fromarray(GREY > 99)) == np.where(GREY > 99, 255, 0)[..., None]).all()


def test_sixteen_bits_are_scaled_not_clipped():
    deep = GREY.astype(np.uint16) * 257
    assert (saved(Image.fromarray(deep)) == GREY[..., None]).all()
    assert (saved(Image.fromarray(deep), "tiff") == GREY[..., None]).all()
    assert (saved(Image.fromarray(deep.astype(np.int32)), "tiff") == GREY[..., None]).all()


def test_palettes_transparency_and_cmyk():
    colours = Image.fromarray(np.stack([GREY, GREY.T, 255 - GREY], -1))
    palette = colours.quantize(16)
    assert (saved(palette) == np.asarray(palette.convert("RGB"))).all()
    assert (saved(palette, transparency=bytes(range(0, 256, 16))) == np.asarray(palette.convert("RGB"))).all()
    transparent = colours.copy()
    transparent.putalpha(Image.fromarray(GREY))
    assert (saved(transparent) == np.asarray(colours)).all()
    cmyk = colours.convert("CMYK")
    assert (saved(cmyk, "tiff") == np.asarray(cmyk.convert("RGB"))).all()


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp"])
def test_photographs_are_turned_as_exif_says(kind):
    pixels = np.zeros((4, 9, 3), np.uint8)
    pixels[:, :4] = 255  # white on the left
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees, clockwise: the left goes up
    turned = saved(Image.fromarray(pixels), kind, exif=exif).astype(int)
    assert turned.shape == (9, 4, 3) and turned[:3].min() > 200 and turned[-3:].max() < 60
    assert saved(Image.fromarray(pixels), kind, exif=b"Exif\0\0broken").shape == (4, 9, 3)  # no reason to lose the photograph


def test_what_cannot_be_read_is_named(tmp_path):
    good = write_image(tmp_path / "good.png", 0).read_bytes()
    broken = {"empty.png": b"", "text.jpg": b"no image", "cut.png": good[: len(good) // 2]}
    broken["flipped.png"] = good[:40] + bytes([good[40] ^ 255]) + good[41:]
    for name, content in broken.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"cannot read image {tmp_path / name}: .+"):
            read_image(tmp_path / name)
    with pytest.raises(ValueError, match=r"absent.png: No such file or directory"):
        read_image(str(tmp_path / "absent.png"))
    with pytest.raises(ValueError, match="cannot read image sample 3 of x: "):
        read_image(io.BytesIO(b""), "sample 3 of x")


def test_floating_point_pixels_have_no_scale():
    with pytest.raises(ValueError, match="floating-point numbers of unknown range"):
        saved(Image.fromarray(GREY.astype(np.float32)), "tiff")
