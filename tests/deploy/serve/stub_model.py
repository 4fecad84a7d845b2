"""A cascade that says what its images tell it to say: three exits, four classes, no training and no torch.

Pixels of the first row are the confidences at exits 1, 2, 3 (in 1/255), the first of the second row is the class. Pairs of
white pixels in the last row make a step misbehave.
"""

import io
import threading
import time

import numpy as np
from PIL import Image

from dynavit.deploy.serve.curve import Curve, Point
from dynavit.deploy.serve.model import ExitFacts, ServedModel

CLASSES = ["zero", "one", "two", "<img src=x onerror=alert(1)>"]
GMACS = (1.0, 2.0, 4.0)
CARRIED = (1000, 3000, 0)
POISON, NAN_FIRST, NAN_LAST, DEADLY = (7, 0), (7, 2), (7, 4), (7, 6)
PREPROCESS = {"kind": "memory", "stored_size": [8, 8], "image_size": [8, 8], "mean": [0.0], "std": [1.0]}


def picture(*confidences: float, label: int = 0, flag: tuple[int, int] | None = None) -> Image.Image:
    pixels = np.full((8, 8), 40, np.uint8)
    sure = [*confidences, *[0.9] * (3 - len(confidences))]
    pixels[0, :3] = np.round(255 * np.array(sure))
    pixels[1, 0] = label
    if flag is not None:
        pixels[flag[0], flag[1] : flag[1] + 2] = 255
    return Image.fromarray(pixels)


def png(*confidences: float, label: int = 0, flag: tuple[int, int] | None = None) -> bytes:
    """An image that is so sure at exits 1, 2, 3 (0.9 where nothing is given)."""
    buffer = io.BytesIO()
    picture(*confidences, label=label, flag=flag).save(buffer, "PNG")
    return buffer.getvalue()


class Step:
    """A batch between exits."""

    def __init__(self, exit, images):
        self.exit, self.images = exit, images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return Step(self.exit, self.images[list(index)])


class StubBackend:
    """`delay(exit, batch)` seconds a step takes; `gate` holds steps up while it is cleared; `largest` batch fits memory."""

    def __init__(self, delay=lambda exit, batch: 0.0):
        self.delay, self.gate, self.largest = delay, threading.Event(), 10**9
        self.gate.set()
        self.steps = []  # (exit, batch) of each
        self.entered = threading.Event()
        self.faulty = False  # flags of images count

    def begin(self, images):
        return Step(1, images)

    def step(self, state):
        values = np.round(state.images[:, 0] * 255)
        self.entered.set()
        self.gate.wait()
        if self.faulty:
            self.steps.append((state.exit, len(state)))
            if len(state) > self.largest:
                raise MemoryError("not enough memory")
            if _flagged(values, DEADLY).any():
                raise SystemExit("a bug in native code, say")
            if _flagged(values, POISON).any():
                raise RuntimeError("this image breaks the model")
        time.sleep(self.delay(state.exit, len(state)))
        sure = values[:, 0, state.exit - 1] / 255
        if self.faulty:
            sure = np.where(_flagged(values, NAN_FIRST) & (state.exit == 1), np.nan, sure)
            sure = np.where(_flagged(values, NAN_LAST), np.nan, sure)
        labels = values[:, 1, 0].astype(int) % 4
        rest = (1 - sure) / 3
        probabilities = np.repeat(rest[:, None], 4, 1)
        probabilities[np.arange(len(labels)), labels] = sure
        return probabilities, None if state.exit == 3 else Step(state.exit + 1, state.images)

    def join(self, states):
        return Step(states[0].exit, np.concatenate([state.images for state in states]))

    def faults(self):
        return []


def _flagged(values, flag):
    return (values[:, flag[0], flag[1] : flag[1] + 2] == 255).all(-1)


POINTS = [
    Point((0.0, 0.0), 1.0, 0.80, (0.78, 0.82), (1.0, 0.0, 0.0)),
    Point((0.5, 0.5), 1.6, 0.88, (0.86, 0.90), (0.6, 0.3, 0.1)),
    Point((0.8, 0.7), 2.4, 0.93, (0.91, 0.95), (0.3, 0.4, 0.3)),
    Point((1e8, 1e8), 4.0, 0.95, (0.93, 0.97), (0.0, 0.0, 1.0)),
]


def stub_model(delay=lambda exit, batch: 0.0, *, points=POINTS, default=POINTS[2]):
    """A fresh one; its `backend` is to be played with after it was started."""
    own = [now - before for before, now in zip((0.0, *GMACS), GMACS, strict=False)]
    exits = [ExitFacts((at + 1, at + 1), own[at], GMACS[at], CARRIED[at]) for at in range(3)]
    curve, notes = Curve.from_points(points, GMACS, default) if points else (Curve.uncalibrated(GMACS), ["not calibrated"])
    return ServedModel(
        StubBackend(delay),
        name="stub",
        version="v1",
        classes=CLASSES,
        exits=exits,
        curve=curve,
        preprocess=PREPROCESS,
        notes=notes,
    )
