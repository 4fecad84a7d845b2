"""From bytes that anybody may have sent to an input of the model. Limits are checked before pixels exist.

Three formats, told by their first bytes; the size is read from the header; memory for pixels is bounded over all threads;
what a decoder says about a broken file is not repeated. The model's own preparation then makes the input.
"""

import asyncio
import io
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from PIL import Image

from .limits import BYTES_PER_PIXEL, Limits
from .problems import Problem, refused

FORMATS = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp"}
MOST_SCANS = 100  # of a JPEG file; a progressive one has about ten, and each is a pass over all pixels

Size = tuple[int, int]  # width, height


class Decoder:
    """Threads that decode, and the memory they share.

    Args:
        prepare: an opened picture to an entry of the model; its pixels are read here.
        observe: is told (format, seconds) of each image that was read.
    """

    def __init__(
        self,
        limits: Limits,
        prepare: Callable[[Image.Image], Any],
        observe: Callable[[str, float], None] = lambda kind, seconds: None,
    ) -> None:
        self.limits, self.prepare, self.observe = limits, prepare, observe
        self.memory = Memory(limits.decode_memory)
        self.threads = ThreadPoolExecutor(limits.decode_threads, "decode")

    async def __call__(self, data: bytes | memoryview) -> Any:
        """The entry of one image.

        Raises:
            NoImage: it cannot be read.
            Problem: there is no memory for it at present.
        """
        return await asyncio.get_running_loop().run_in_executor(self.threads, self.decode, data)

    def decode(self, data: bytes | memoryview) -> Any:
        kind = "none"
        start = time.perf_counter()
        try:
            kind = recognise(data, self.limits)
            with opened(data, kind) as image:
                check_size(image.size, self.limits)
                with self.memory.taken(image.width * image.height * BYTES_PER_PIXEL, self.limits.decode_wait):
                    entry = self.prepare(image)
        except Problem as problem:
            if problem.status == 503:
                raise
            raise NoImage(kind, problem) from problem
        except MemoryError:
            raise refused("decode_busy", 1.0) from None
        except Exception as error:  # a broken file makes decoders stumble in any way
            raise NoImage(kind, _undecodable()) from error
        self.observe(kind, time.perf_counter() - start)
        return entry

    def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)


class NoImage(Problem):
    """Bytes that are no image we take. `format` is what they seemed to be."""

    def __init__(self, format: str, why: Problem) -> None:
        super().__init__(why.status, why.code, why.error, hint=why.hint)
        self.format = format


class Memory:
    """So many bytes for all threads together. Whoever does not fit waits."""

    def __init__(self, total: int) -> None:
        self.total, self.used, self.peak = total, 0, 0
        self.changed = threading.Condition()

    @contextmanager
    def taken(self, size: int, patience: float) -> Iterator[None]:
        with self.changed:
            if not self.changed.wait_for(lambda: self.used + size <= self.total, patience):
                raise refused("decode_busy", 1.0)
            self.used += size
            self.peak = max(self.peak, self.used)
        try:
            yield
        finally:
            with self.changed:
                self.used -= size
                self.changed.notify_all()


def recognise(data: bytes | memoryview, limits: Limits) -> str:
    """JPEG, PNG or WEBP by the first bytes. No name and no Content-Type is believed."""
    if len(data) > limits.max_image:
        raise Problem(413, "image_too_large", f"an image may have {limits.max_image} bytes, this one has {len(data)}")
    if not len(data):
        raise Problem(422, "empty_image", "an image has no bytes")
    head = bytes(data[:16])
    if head.startswith(b"\xff\xd8\xff"):
        if bytes(data).count(b"\xff\xda") > MOST_SCANS:  # entropy-coded data never hold a marker
            raise Problem(422, "undecodable", f"the JPEG file has more than {MOST_SCANS} scans")
        return "JPEG"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        if size := webp_size(bytes(data[:30])):
            check_size(size, limits)  # Pillow's reader would make room for the canvas before it tells the size
        return "WEBP"
    raise Problem(
        415, "format", "the image is none of JPEG, PNG and WebP", hint="the content counts, not a name or Content-Type"
    )


def webp_size(head: bytes) -> Size | None:
    """(width, height) of the canvas, from the first 30 bytes of a WebP file; None where they are cut or damaged.

    https://developers.google.com/speed/webp/docs/riff_container
    """
    if len(head) < 30:
        return None
    if head[12:16] == b"VP8X":
        return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
    if head[12:16] == b"VP8L" and head[20] == 0x2F:
        bits = int.from_bytes(head[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if head[12:16] == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":
        return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF
    return None


@contextmanager
def opened(data: bytes | memoryview, kind: str) -> Iterator[Image.Image]:
    """The picture with its header read. Of an animation the first frame."""
    try:
        image = Image.open(io.BytesIO(data), formats=[kind])
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise Problem(413, "pixels", "the image has far too many pixels; make it smaller") from error
    except Exception as error:
        raise _undecodable() from error
    with image:
        yield image


def check_size(size: Size, limits: Limits) -> None:
    """Refuse an image by its header."""
    width, height = size
    if max(size) > limits.max_side or width * height > limits.max_pixels:
        raise Problem(
            413,
            "pixels",
            f"the image has {width} x {height} pixels, more than {limits.max_pixels} or than {limits.max_side} along a side",
        )
    if max(size) > limits.max_aspect * min(size):
        raise Problem(
            413, "aspect", f"the image has {width} x {height} pixels; one side may be {limits.max_aspect} times the other"
        )


def warn_of_bombs_by_error() -> None:
    """Pillow only warns about images of 90 to 180 million pixels; for a process that serves, this makes it an error."""
    warnings.simplefilter("error", Image.DecompressionBombWarning)


def _undecodable() -> Problem:
    return Problem(422, "undecodable", "the image cannot be decoded: it is damaged or cut off")
