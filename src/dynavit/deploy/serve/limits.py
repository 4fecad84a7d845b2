"""Every limit of the service in one table: what one request, one client and all of them together may take.

An option of `dynavit serve` each, shown by `/v1/info`. Sizes are bytes, times seconds.
"""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from ...common.fits import AtLeastOne, Positive, Range, check_fits

KIB, MIB = 1 << 10, 1 << 20
BYTES_PER_PIXEL = 4  # of a decoded image, at most

Seconds = Positive
Many = Annotated[int, Range(least=0)]


@dataclass(frozen=True)
class Limits:
    """What a request, a client, and all of them together may take.

    Attributes:
        max_body: bytes of one request, counted while they arrive; more is answered with 413.
        max_bodies: bytes of all requests that are being received or answered; more is answered with 503.
        max_image: bytes of one encoded image; more is answered with 413.
        max_pixels: of one image, read from its header before it is decoded.
        max_side: pixels along one side of an image.
        max_aspect: longer side over shorter side; a model that scales the shorter side up makes the longer one huge.
        max_images: in one request.
        decode_memory: bytes of pixels that are being decoded at the same time; others wait.
        decode_threads: that decode images.
        decode_wait: seconds that an image waits for this memory before it is refused with 503.
        max_queue: images that wait or run; more are refused with 503 and Retry-After.
        max_per_client: images of one client that wait or run; more are refused with 429.
        max_parked: bytes that images carry between exits, reserved; where they are used up, exit 1 pauses.
        max_batch: images that run together.
        header_time: seconds in which the header of a request has to arrive.
        body_time: seconds in which its body has to arrive.
        body_rate: bytes per second that a body must bring, on average, once body_grace is over.
        body_grace: seconds before body_rate is asked for.
        send_time: seconds that the rest of an answer may wait for the client to read on; then the connection is closed.
        total_time: seconds from the last byte of a request to its answer; then 504.
        keep_alive: seconds that a connection may rest between two requests.
        max_connections: open at the same time; beyond, the one that rested longest is closed.
        max_streams: of live numbers (/v1/stream).
        max_explain: requests for attention maps that may wait; one is computed at a time.
        heartbeat: seconds without a sign of life, or five times the longest batch if that is more, after which the thread of
            the model counts as dead.
        drain_time: seconds that admitted images have to finish when the server is told to stop.
        max_depth: of nested JSON.
        max_header: bytes of the header of a request.
        max_path: letters of a path with its query.
        overload_status: the status of a full queue, for clients that try again only after 429.
    """

    max_body: AtLeastOne = 16 * MIB
    max_bodies: AtLeastOne = 256 * MIB
    max_image: AtLeastOne = 10 * MIB
    max_pixels: AtLeastOne = 50_000_000
    max_side: AtLeastOne = 16_384
    max_aspect: AtLeastOne = 100
    max_images: AtLeastOne = 32
    decode_memory: AtLeastOne = 256 * MIB
    decode_threads: AtLeastOne = 2
    decode_wait: Seconds = 5.0
    max_queue: AtLeastOne = 256
    max_per_client: AtLeastOne = 64
    max_parked: AtLeastOne = 512 * MIB
    max_batch: AtLeastOne = 32
    header_time: Seconds = 10.0
    body_time: Seconds = 30.0
    body_rate: Many = 16 * KIB
    body_grace: Seconds = 5.0
    send_time: Seconds = 30.0
    total_time: Seconds = 30.0
    keep_alive: AtLeastOne = 75
    max_connections: AtLeastOne = 512
    max_streams: Many = 16
    max_explain: Many = 4
    heartbeat: Seconds = 10.0
    drain_time: Seconds = 30.0
    max_depth: AtLeastOne = 16
    max_header: AtLeastOne = 128 * KIB
    max_path: AtLeastOne = 8 * KIB
    overload_status: Literal[503, 429] = 503

    def __post_init__(self) -> None:
        check_fits(Limits, asdict(self))

    def check(self, *, job_bytes: int = 0, input_pixels: int = 0) -> list[str]:
        """Refuse values that contradict each other, or leave some image no way through; both values are named.

        Args:
            job_bytes: the most that one image carries between exits.
            input_pixels: of the model's input.

        Returns:
            warnings about values that fit, but are tight.
        """
        rules = [
            ("max_parked", self.max_parked, "what one image carries between exits", job_bytes),
            ("max_queue", self.max_queue, "max_images", self.max_images),
            ("max_pixels", self.max_pixels, "the pixels of the model's input", input_pixels),
            ("decode_memory", self.decode_memory, "the largest image, 4 · max_pixels", BYTES_PER_PIXEL * self.max_pixels),
            ("max_body", self.max_body, "max_image", self.max_image),
            ("max_bodies", self.max_bodies, "max_body", self.max_body),
            ("max_side²", self.max_side**2, "the pixels of the model's input", input_pixels),
            ("total_time", self.total_time, "body_time", self.body_time),
            ("body_time", self.body_time, "body_grace", self.body_grace),
            ("max_header", self.max_header, "max_path", self.max_path),
            ("max_connections", self.max_connections, "max_streams + 1", self.max_streams + 1),
        ]
        for name, value, other, least in rules:
            if value < least:
                raise ValueError(
                    f"{name} is {value:g}, less than {other}, which is {least:g}; raise the first or lower the second"
                )
        batch = self.max_batch * job_bytes
        if self.max_parked < batch:
            return [f"max_parked is {self.max_parked}: less than a batch of {self.max_batch} images carries ({batch} bytes)"]
        return []

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
