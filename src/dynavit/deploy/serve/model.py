"""A model as the service runs it: one exit at a time, on batches that are cut and joined between exits.

    served = ServedModel.open("digits-onnx")          a bundle; `runs.served.open_served` also opens runs
    state = served.begin([served.prepare(image)])     images wait as bytes and are normalised inside their batch
    probabilities, state = served.step(state)         (b, classes); no state after the last exit
    state[[0, 2]], served.join([state, other])

A model without exits is a cascade with one.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, NotRequired, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...common.files import read_json
from ...common.fits import check_fits
from ..bundle.exit_rule import CONFIDENCES, POLICY, softmax
from ..bundle.manifest import is_bundle
from ..bundle.prepare import Pixels, as_rgb, normalised, stored_pixels
from ..bundle.runner import Bundle, load_bundle
from .curve import Curve, Point, read_point

Entry = NDArray[Any]  # (c, h, w), uint8 to be normalised, or float32 as the model takes it


class State(Protocol):
    """A batch between two exits."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Sequence[int]) -> Any: ...


class Backend(Protocol):
    """What computes: numpy arrays in and out, states in between."""

    def begin(self, images: Pixels) -> Any: ...

    def step(self, state: Any) -> tuple[NDArray[np.floating], Any]:
        """Probabilities (b, classes), and the state for the next exit; None after the last."""
        ...

    def join(self, states: Sequence[Any]) -> Any: ...

    def faults(self) -> list[str]:
        """Reasons why its answers could not be relied on."""
        ...


@dataclass(frozen=True)
class ExitFacts:
    """One exit. GMACs of itself and with all before, None: not known; bytes that an image carries on after it."""

    grid: tuple[int, int] | None
    gmacs: float | None
    cumulative_gmacs: float | None
    state_bytes: int


class StoredExit(TypedDict):
    """An exit in the manifest of a bundle."""

    grid: list[int] | None
    gmacs: float
    cumulative_gmacs: float
    state_bytes: int


class StoredPoint(TypedDict):
    """A calibration point in the manifest."""

    thresholds: list[float | None]
    gmacs: float
    accuracy: float
    shares: NotRequired[list[float] | None]
    accuracy_ci: NotRequired[list[float] | None]


class StoredCalibration(TypedDict):
    """The curve in the manifest, and what the stored thresholds gave on the same images."""

    data: str
    n: int
    seed: int | None
    points: list[StoredPoint]
    default: NotRequired[StoredPoint | None]


class ServedModel:
    """See the top of the file.

    Attributes:
        exits: facts about each.
        curve: budgets it can be asked for.
        confidence_kind: the confidence that thresholds are about.
        calibration: {"data", "n", "seed"} of the images that the curve was found on; None: there is none.
        notes: warnings for whoever starts the service.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        name: str,
        version: str,
        classes: Sequence[str],
        exits: Sequence[ExitFacts],
        curve: Curve,
        preprocess: Mapping[str, Any],
        confidence_kind: str = "max_softmax",
        calibration: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.backend, self.name, self.version, self.classes = backend, name, version, list(classes)
        self.exits, self.curve, self.preprocess = list(exits), curve, dict(preprocess)
        self.confidence_kind, self.notes = confidence_kind, list(notes)
        self.calibration = calibration and {name: calibration[name] for name in ("data", "n", "seed")}

    @classmethod
    def open(cls, path: str | PathLike[str], *, device: str = "cpu", trust_pt2: bool = False) -> "ServedModel":
        """The model of a bundle. Checksums are compared first."""
        directory = Path(path)
        if not is_bundle(directory):
            raise ValueError(
                f"{directory} is not a bundle of `dynavit export`; a run is opened by dynavit.runs.served.open_served, as "
                "`dynavit serve` does"
            )
        if device != "cpu":
            raise ValueError(f"{directory} is a bundle, which runs on the CPU; leave --device {device} out, or serve the run")
        return of_bundle(load_bundle(directory, trust_pt2=trust_pt2))

    @property
    def input_size(self) -> tuple[int, int, int]:
        """(channels, height, width) of what the model takes."""
        height, width = self.preprocess["image_size"]
        return len(self.preprocess["mean"]), int(height), int(width)

    @property
    def entry_size(self) -> tuple[int, int, int]:
        """(channels, height, width) of what waits for exit 1."""
        height, width = self.preprocess["stored_size" if self.preprocess["kind"] == "memory" else "image_size"]
        return len(self.preprocess["mean"]), int(height), int(width)

    def prepare(self, image: Image.Image) -> NDArray[np.uint8]:
        """An opened image as it waits for exit 1: turned as EXIF says, cut and resized, in bytes."""
        return stored_pixels(as_rgb(image), self.preprocess)

    def begin(self, entries: Sequence[Entry]) -> Any:
        """A batch before exit 1. Entries of floats are taken as they are."""
        images = np.empty((len(entries), *self.input_size), np.float32)
        raw = [at for at, entry in enumerate(entries) if entry.dtype == np.uint8]
        if raw:
            images[raw] = normalised(np.stack([entries[at] for at in raw]), self.preprocess)
        for at, entry in enumerate(entries):
            if entry.dtype != np.uint8:
                images[at] = entry
        return self.backend.begin(images)

    def step(self, state: Any) -> tuple[NDArray[np.floating], Any]:
        """Run the exit that the batch waits for: probabilities (b, classes), and what goes on, None after the last."""
        return self.backend.step(state)

    def join(self, states: Sequence[Any]) -> Any:
        """One batch of several that wait for the same exit."""
        return states[0] if len(states) == 1 else self.backend.join(states)

    def confidence(self, probabilities: NDArray[np.floating]) -> NDArray[np.floating]:
        """(b, classes) -> (b,), what thresholds are compared with."""
        return CONFIDENCES[self.confidence_kind](probabilities)

    def self_test(self) -> None:
        """Raise `SelfTestError` if its answers cannot be relied on."""
        from .selftest import self_test

        self_test(self)


# ---- Bundles


@dataclass(frozen=True)
class ArrayState:
    """A batch between two files of a bundle."""

    exit: int  # index of the file that is next, from 0
    images: Pixels
    reused: tuple[Pixels, ...] = ()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Sequence[int]) -> "ArrayState":
        rows = list(index)
        return replace(self, images=self.images[rows], reused=tuple(part[rows] for part in self.reused))


class BundleBackend:
    """One file for each exit."""

    train: ClassVar[bool] = False

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle

    def begin(self, images: Pixels) -> ArrayState:
        return ArrayState(0, np.ascontiguousarray(images, np.float32))

    def step(self, state: ArrayState) -> tuple[NDArray[np.floating], ArrayState | None]:
        logits, *reused = self.bundle.parts[state.exit](state.images, *state.reused)
        last = state.exit + 1 == len(self.bundle.parts)
        return softmax(logits), None if last else ArrayState(state.exit + 1, state.images, tuple(reused))

    def join(self, states: Sequence[ArrayState]) -> ArrayState:
        columns = zip(*(state.reused for state in states), strict=True)
        return ArrayState(
            states[0].exit, np.concatenate([state.images for state in states]), tuple(map(np.concatenate, columns))
        )

    def faults(self) -> list[str]:
        return []  # files have no training mode


def of_bundle(bundle: Bundle) -> ServedModel:
    """A bundle as it is served; those of earlier versions say less about themselves."""
    manifest = bundle.manifest
    if "preprocess" not in manifest:
        raise ValueError(f"{bundle.path}: the manifest does not say how an image becomes an input: preprocess is missing")
    backend, parts, notes = BundleBackend(bundle), manifest["parts"], list[str]()
    policy = read_json(bundle.path / POLICY) if bundle.rule is not None else {}
    exits = _stored_exits(manifest, policy, backend, len(parts))
    if any(exit.gmacs is None for exit in exits):
        notes.append(f"{bundle.path} does not say what its exits cost, so budgets in GMACs are refused; export the run again")
    curve, found = stored_curve(manifest.get("calibration"), policy, exits, str(bundle.path))
    weights = hashlib.sha256("".join(manifest["files"][name]["sha256"] for name in parts).encode()).hexdigest()
    return ServedModel(
        backend,
        name=str(manifest.get("model", {}).get("name", bundle.path.resolve().name)),
        version=str(manifest.get("model_version", weights[:12])),
        classes=bundle.classes,
        exits=exits,
        curve=curve,
        preprocess=manifest["preprocess"],
        confidence_kind=policy.get("confidence_kind", "max_softmax"),
        calibration=manifest.get("calibration"),
        notes=[*notes, *found],
    )


def _stored_exits(manifest: Mapping[str, Any], policy: Mapping[str, Any], backend: Backend, count: int) -> list[ExitFacts]:
    if "exits" in manifest:
        check_fits(list[StoredExit], manifest["exits"], "exits")
        if len(manifest["exits"]) != count:
            raise ValueError(f"the manifest describes {len(manifest['exits'])} exits and names {count} files")
        return [
            ExitFacts(exit["grid"] and tuple(exit["grid"]), exit["gmacs"], exit["cumulative_gmacs"], exit["state_bytes"])
            for exit in manifest["exits"]
        ]
    total: Sequence[float | None] = policy.get("gmacs") or [None] * count
    carried = carried_bytes(backend, tuple(manifest["input"]))
    return [ExitFacts(None, own, sums, size) for own, sums, size in zip(_steps(total), total, carried, strict=True)]


def _steps(total: Sequence[float | None]) -> list[float | None]:
    before = [0.0, *total[:-1]]
    return [None if now is None or then is None else now - then for now, then in zip(total, before, strict=True)]


def stored_curve(
    calibration: Mapping[str, Any] | None, policy: Mapping[str, Any], exits: Sequence[ExitFacts], where: str
) -> tuple[Curve, list[str]]:
    """The curve of a calibration, and notes. `policy` are the thresholds that prediction uses."""
    cumulative = [exit.cumulative_gmacs for exit in exits]
    default: Point | None = None
    if policy:
        plain = {
            "thresholds": policy["thresholds"],
            "shares": policy.get("shares"),
            "accuracy": policy.get("expected_accuracy"),
        }
        if plain["shares"] and None not in cumulative:
            plain["gmacs"] = sum(
                share * cost for share, cost in zip(plain["shares"], cumulative, strict=True) if cost is not None
            )
        default = read_point(plain, len(exits), ((policy.get("found_on") or {}).get("samples")))
    if calibration is None:
        uncalibrated = (
            f"{where} was not calibrated with a curve, so that a budget can only choose the deepest exit (dynavit calibrate)"
        )
        return Curve.uncalibrated(cumulative, default), [uncalibrated] if len(exits) > 1 else []
    check_fits(StoredCalibration, calibration, "calibration")
    if calibration.get("default"):
        default = read_point(calibration["default"], len(exits), calibration["n"])
    points = [read_point(point, len(exits), calibration["n"]) for point in calibration["points"]]
    return Curve.from_points(points, cumulative, default)


def carried_bytes(backend: Backend, input_size: tuple[int, ...]) -> list[int]:
    """What an image carries after each exit, tried with one."""
    carried, state = [], backend.begin(np.zeros((1, *input_size), np.float32))
    while state is not None:
        _, state = backend.step(state)
        carried.append(0 if state is None else nbytes(state))
    return carried


def nbytes(state: Any) -> int:
    """Bytes of a state's arrays."""
    parts = [part for value in vars(state).values() for part in (value if isinstance(value, tuple) else [value])]
    return sum(int(part.nbytes) for part in parts if hasattr(part, "nbytes"))
