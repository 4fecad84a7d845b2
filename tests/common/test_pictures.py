"""Image files are opened in one place, and only in formats that are decoded in this process."""

import io
import os
import struct
import zlib
from pathlib import Path

import pytest
from PIL import EpsImagePlugin, Image

import dynavit
from dynavit.common import pictures
from dynavit.common.pictures import FORMATS, open_picture
from dynavit.data.config import DataConfig
from dynavit.data.read_image import read_image
from dynavit.data.timm_scheme import open_torchvision
from dynavit.deploy.bundle.prepare import read_rgb

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n0 0 8 8 rectfill\nshowpage\n%%EOF\n"


def test_no_other_program_is_started(tmp_path, monkeypatch):
    """Under any of our names, whichever part of the library reads it."""
    started = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: started.append(1) or Image.new("RGB", (8, 8)).im)
    for split in ("train", "val"):
        (tmp_path / split / "cat").mkdir(parents=True)
        (tmp_path / split / "cat" / "a.png").write_bytes(EPS)
    file = tmp_path / "train/cat/a.png"
    for read in (read_image, read_rgb, lambda file: read_image(io.BytesIO(file.read_bytes()), file.name)):
        with pytest.raises(ValueError, match=r"cannot read image .*a.png: its content is none of JPEG, PNG"):
            read(file)
    torchvisions = open_torchvision("image_folder", tmp_path, DataConfig()).splits["val"]
    with pytest.raises(ValueError, match="cannot read sample 0 of torch/image_folder: .*its content is none of JPEG"):
        torchvisions.read(0)
    assert not started


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_read(kind, tmp_path):
    Image.new("RGB", (5, 4), (9, 9, 9)).save(tmp_path / "x", kind)
    with open_picture(tmp_path / "x") as image:
        assert image.size == (5, 4) and image.format == kind


def test_names_of_image_files_are_those_of_the_formats():
    from dynavit.data.folder import EXTENSIONS
    from dynavit.deploy.bundle.answers import EXTENSIONS as OF_BUNDLES

    Image.init()
    assert {Image.EXTENSION[ending] for ending in (*EXTENSIONS, *OF_BUNDLES)} <= set(FORMATS)


@pytest.mark.parametrize("pillows_own", [True, False])
def test_a_few_bytes_that_stand_for_gigabytes_are_refused(tmp_path, monkeypatch, pillows_own):
    """Also where a program has switched off Pillow's limit."""
    if not pillows_own:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    (tmp_path / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 0) + b"IDAT" + b"\0" * 4)
    with pytest.raises(ValueError, match=rf"more than {pictures.MOST_PIXELS}.*; make it smaller"):
        read_image(tmp_path / "x.png")


def test_image_files_are_opened_in_one_place_only():
    """The service opens bytes of strangers under limits of its own, and fewer formats still."""
    package = Path(dynavit.__file__).parent
    found = [file.relative_to(package).as_posix() for file in package.rglob("*.py") if "Image.open(" in file.read_text()]
    assert sorted(found) == ["common/pictures.py", "deploy/serve/images.py"]


def test_what_is_no_regular_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.jpg")
    for read in (read_image, read_rgb):
        with pytest.raises(ValueError, match="a.jpg: it is not a regular file"):
            read(tmp_path / "a.jpg")
