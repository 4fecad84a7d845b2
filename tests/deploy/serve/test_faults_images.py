"""Faults in images: F4 to F6, damaged files, and memory while decoding."""

import io
import json
import struct
import threading
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image, ImageDraw

from deploy.serve.live import in_background, live
from deploy.serve.stub_model import picture, png
from dynavit.deploy.serve.images import Decoder, Memory, recognise, webp_size
from dynavit.deploy.serve.limits import Limits
from dynavit.deploy.serve.problems import Problem


@pytest.fixture(scope="module")
def served():
    with live() as running:
        running.backend.faulty = False  # damaged images may have white pixels anywhere
        yield running


def saved(image, format, **options):
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_header(width, height):
    """A PNG file that claims so many pixels, in a few bytes."""
    rows = zlib.compress(bytes(1000))
    start = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + start + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def jpeg_header(width, height):
    """A JPEG file whose frame claims so many pixels."""
    whole = saved(Image.new("L", (16, 16)), "JPEG")
    at = whole.index(b"\xff\xc0")
    return whole[: at + 5] + struct.pack(">HH", height, width) + whole[at + 9 :]


def webp_header(width, height):
    """An extended WebP file whose canvas claims so many pixels."""
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + size
    return b"RIFF" + struct.pack("<I", len(body)) + body


# ---- F4: images that are too much, and those that only look strange

TOO_MUCH = {
    "PNG bomb": png_header(12_000, 12_000),
    "PNG bomb that Pillow refuses by itself": png_header(20_000, 20_000),
    "a side of 65,500 pixels": jpeg_header(65_500, 10),
    "JPEG of 65,500 x 65,500": jpeg_header(65_500, 65_500),
    "1 pixel wide, 16 million high": png_header(1, 16_000_000),
    "a thin line, which would grow when its short side is scaled": png_header(16_000, 1),
    "WebP whose canvas is too large": webp_header(16_000, 16_000),
    "more bytes than an image may have": png() + bytes(10 << 20),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_f4_images_that_are_too_large(served, name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        status, _, found = served.predict(TOO_MUCH[name])
    assert status == 413 and found["code"] in ("pixels", "aspect", "image_too_large")


def _rgb():
    return Image.merge("RGB", [picture(0.85, label=2)] * 3)


def _palette_with_alpha():
    image = picture(0.85, label=2).convert("P")
    image.info["transparency"] = 3
    return saved(image, "PNG", transparency=3)


def _turned():
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    return saved(picture(0.85, label=2).transpose(Image.Transpose.ROTATE_90), "PNG", exif=exif)


STRANGE = {
    "grey": png(0.85, label=2),
    "RGB": saved(_rgb(), "PNG"),
    "transparent": saved(_rgb().convert("RGBA"), "PNG"),
    "palette and transparency": _palette_with_alpha(),
    "16 bits": saved(Image.fromarray(np.asarray(picture(0.85, label=2), np.uint16) * 257), "PNG"),
    "turned by EXIF": _turned(),
    "WebP": saved(_rgb(), "WEBP", lossless=True),
    "animated WebP, first frame": saved(
        _rgb(), "WEBP", lossless=True, save_all=True, append_images=[Image.merge("RGB", [picture(0.1)] * 3)]
    ),
    "animated PNG, first frame": saved(_rgb(), "PNG", save_all=True, append_images=[Image.merge("RGB", [picture(0.1)] * 3)]),
    "broken EXIF": saved(_rgb(), "PNG", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_f4_images_that_look_strange_get_the_right_answer(served, name):
    status, _, found = served.predict(STRANGE[name])
    assert status == 200
    assert found["results"][0]["label"] == 2 and found["results"][0]["confidence"] == pytest.approx(217 / 255)


def test_f4_cmyk_and_colour_jpeg(served):
    """Lossy, so only that they are answered like the same file of `dynavit predict` would be."""
    from dynavit.deploy.bundle.prepare import as_rgb, stored_pixels

    big = Image.new("RGB", (64, 48), (200, 180, 90))
    ImageDraw.Draw(big).rectangle((5, 5, 40, 30), fill=(20, 90, 160))
    for image in (big, big.convert("CMYK"), big.convert("L")):
        data = saved(image, "JPEG", quality=95)
        assert served.predict(data, **{"Content-Type": "image/jpeg"})[0] == 200
        with Image.open(io.BytesIO(data)) as opened:
            alone = stored_pixels(as_rgb(opened), served.model.preprocess)
        assert np.array_equal(served.service.decoder.decode(data), alone)


# ---- F5: what is no image

NO_IMAGE = {
    "nothing": (b"", 422),
    "text": (b"Dear server, please open this.", 415),
    "PDF": (b"%PDF-1.7\n" + bytes(100), 415),
    "SVG": (b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>', 415),
    "FITS": (b"SIMPLE  =                    T" + bytes(3000), 415),
    "EPS": (b"%!PS-Adobe-3.0 EPSF-3.0\n", 415),
    "GIF": (saved(Image.new("L", (8, 8)), "GIF"), 415),
    "TIFF": (saved(Image.new("L", (8, 8)), "TIFF"), 415),
    "BMP": (saved(Image.new("L", (8, 8)), "BMP"), 415),
    "pickle": (b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os", 415),
    "PNG cut off": (saved(Image.effect_noise((64, 64), 60), "PNG")[:900], 422),
    "PNG without pixels": (png()[:40], 422),
    "JPEG of a few bytes": (b"\xff\xd8\xff\xe0\x00", 422),
    "JPEG cut off": (saved(Image.effect_noise((64, 64), 60), "JPEG")[:900], 422),
    "WebP cut off": (saved(_rgb(), "WEBP")[:40], 422),
    "WebP of a few bytes": (b"RIFF\x00\x00\x00\x00WEBP", 422),
    "JPEG with a thousand scans": (b"\xff\xd8\xff\xe0" + b"\xff\xda\x00\x08" * 1000, 422),
}


@pytest.mark.parametrize("name", NO_IMAGE)
def test_f5_what_is_no_image(served, name):
    data, expected = NO_IMAGE[name]
    status, _, found = served.predict(data)
    assert status == expected and found["code"] in ("format", "undecodable", "empty_image")
    assert ("scans" in found["error"]) == (name == "JPEG with a thousand scans")
    assert "PIL" not in found["error"] and "Traceback" not in json.dumps(found)


def damaged(generator, files):
    """A file with a few bits flipped, or cut off, or with bytes in the middle repeated."""
    data = bytearray(files[generator.integers(len(files))])
    way = generator.integers(3)
    if way == 0:
        for at in generator.integers(0, len(data), generator.integers(1, 9)):
            data[at] ^= 1 << int(generator.integers(8))
    elif way == 1:
        del data[int(generator.integers(len(data))) :]
    else:
        start, stop = sorted(generator.integers(0, len(data), 2).tolist())
        data[start:start] = data[start:stop]
    return bytes(data)


def answer_all(served, count, seed):
    noise = Image.effect_noise((40, 30), 80)
    colour = Image.merge("RGB", [noise, noise.rotate(90), noise])
    options = {"PNG": {}, "JPEG": {"progressive": True}, "WEBP": {}}
    files = [saved(colour, format, **more) for format, more in options.items()]
    files += [saved(noise, "JPEG"), saved(colour, "WEBP", lossless=True), _turned(), STRANGE["16 bits"]]
    generator = np.random.default_rng(seed)
    before = served.totals()["decode_errors_total"] if served.totals().get("decode_errors_total") else 0
    statuses = [served.predict(damaged(generator, files))[0] for _ in range(count)]
    assert set(statuses) <= {200, 413, 415, 422}
    bad = sum(status != 200 for status in statuses)
    assert served.totals()["decode_errors_total"] - before == bad > count / 10
    assert served.service.decoder.memory.used == 0
    return statuses


def test_f5_damaged_images_never_harm(served):
    answer_all(served, 100, 1)


@pytest.mark.slow
def test_f5_two_thousand_damaged_images(served):
    assert {200, 415, 422} <= set(answer_all(served, 2000, 2))


# ---- F6: prepared pixels that do not fit


def infer(served, shape, data, datatype="FP32", name="pixels"):
    body = {"inputs": [{"name": name, "shape": shape, "datatype": datatype, "data": data}]}
    return served.ask("POST", "/v2/models/stub/infer", json.dumps(body).encode(), {"Content-Type": "application/json"})


@pytest.mark.parametrize(
    ("shape", "data", "datatype", "code"),
    [
        ([1, 1, 8, 8], [float("nan")] + [0.0] * 63, "FP32", "data"),
        ([1, 1, 8, 8], [float("inf")] + [0.0] * 63, "FP32", "data"),
        ([1, 1, 8, 8], [1e300] * 64, "FP32", "data"),
        ([1, 1, 8, 8], ["a"] * 64, "FP32", "data"),
        ([1, 1, 8, 8], [[0.0], [0.0, 1.0]], "FP32", "data"),
        ([1, 1, 8, 8], [0.0] * 63, "FP32", "shape"),
        ([1, 3, 8, 8], [0.0] * 192, "FP32", "shape"),
        ([64], [0.0] * 64, "FP32", "shape"),
        ([0, 1, 8, 8], [], "FP32", "shape"),
        ([-1, 1, 8, 8], [], "FP32", "shape"),
        ([1, 1, 8, 8], [0] * 64, "INT64", "datatype"),
        ([33, 1, 8, 8], [0.0] * 33 * 64, "FP32", "too_many_images"),
    ],
)
def test_f6_pixels_that_do_not_fit(served, shape, data, datatype, code):
    status, _, found = infer(served, shape, data, datatype)
    assert status == (413 if code == "too_many_images" else 422) and found["code"] == code
    assert isinstance(found["error"], str)


# ---- Memory while decoding


def test_memory_in_flight_is_bounded():
    memory = Memory(100)
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with memory.taken(60, 5):
            inside.set()
            leave.wait(5)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(5)
    with pytest.raises(Problem, match="too many large images") as refusal, memory.taken(60, 0.01):
        pass
    assert (refusal.value.status, refusal.value.code, refusal.value.headers["Retry-After"]) == (503, "decode_busy", "1")
    with memory.taken(40, 0.01):
        assert memory.used == 100
    leave.set()
    thread.join(5)
    assert memory.used == 0 and memory.peak == 100


def test_large_images_wait_for_each_other():
    """Eight images at once, of which two fit: never more than two, and all are answered."""
    seen, lock, two = [], threading.Lock(), threading.Barrier(2)
    limits = Limits(decode_memory=2 * 4 * 64 * 64, max_pixels=64 * 64, decode_threads=4)

    def prepare(image):
        two.wait(20)  # nobody goes on alone, so two are inside
        with lock:
            seen.append(decoder.memory.used)
        image.load()
        return 1

    decoder = Decoder(limits, prepare)
    data = saved(Image.effect_noise((64, 64), 60), "PNG")
    assert in_background(8, lambda at: decoder.decode(data))() == [1] * 8
    assert max(seen) <= limits.decode_memory and decoder.memory.peak == limits.decode_memory
    decoder.close()


def test_size_of_webp_without_opening_it():
    for width, height in ((1, 1), (300, 200), (16_383, 3)):
        for options in ({}, {"lossless": True}, {"save_all": True, "append_images": [Image.new("RGB", (width, height), 9)]}):
            data = saved(Image.new("RGB", (width, height), 200), "WEBP", **options)
            assert webp_size(data[:30]) == (width, height), options
    assert webp_size(b"RIFF") is None


def test_formats_are_told_by_their_content():
    assert recognise(png(), Limits()) == "PNG"
    with pytest.raises(Problem, match="may have 5 bytes"):
        recognise(png(), Limits(max_image=5))
