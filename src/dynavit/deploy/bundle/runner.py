"""Run a bundle: numpy and onnxruntime for ONNX, torch only for .pt2.

bundle = load_bundle("digits-onnx")
bundle(images)                       (b, c, h, w) -> logits (b, classes)
bundle.predict(images)               labels, confidence and exit; a cascade with a policy really stops early
bundle.predict_files(["a.png"])      what `dynavit predict` prints
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.answers import answer_line
from ...common.extras import require
from .answers import answer_files
from .exit_rule import POLICY, ExitRule, softmax
from .manifest import MANIFEST, read_manifest
from .prepare import Pixels, prepare

Part = Callable[..., list[Pixels]]  # one file: arrays in, arrays out


@dataclass(frozen=True)
class Predictions:
    """One row for each image."""

    logits: Pixels  # (b, classes) of the exit it left at
    labels: NDArray[np.int64]  # (b,)
    confidence: Pixels  # (b,) the policy's, or the largest probability
    exit: NDArray[np.int64]  # (b,) counted from 0; 0 for a model without exits


class Bundle:
    """An exported model, a `Predictor`. `manifest` holds all facts about it; files are opened when they are first needed."""

    def __init__(self, path: Path, manifest: dict[str, Any], parts: list[Part], rule: ExitRule | None) -> None:
        self.path, self.manifest, self.parts, self.rule = path, manifest, parts, rule
        self.classes: list[str] = manifest["classes"]

    def exits(self, images: Pixels) -> tuple[Pixels, ...]:
        """The logits of every exit, coarse to fine; of a classifier the only ones."""
        images, found = self._checked(images), []
        reused: list[Pixels] = []
        for part in self.parts:
            logits, *reused = part(images, *reused)
            found.append(logits)
        return tuple(found)

    def __call__(self, images: Pixels) -> Pixels:
        """(b, c, h, w) -> (b, classes), those of the last exit; a model without classes gives features."""
        return self.exits(images)[-1]

    def predict(self, images: Pixels) -> Predictions:
        """Stop each image at the first exit that is sure of it. Without a policy all go to the last exit."""
        if not self.classes:
            raise ValueError(
                f"{self.path} gives features of images and knows no classes; call the bundle itself: bundle(images)"
            )
        images = self._checked(images)
        rule = self.rule or ExitRule((np.inf,) * (len(self.parts) - 1) + (-np.inf,), "max_softmax")
        waiting = np.arange(len(images))
        reused: list[Pixels] = []
        logits = np.zeros((len(images), len(self.classes)), np.float32)
        exits = np.zeros(len(images), np.int64)
        for at, part in enumerate(self.parts):
            if not len(waiting):
                break
            found, *reused = part(images[waiting], *reused)
            if found.shape[-1] != len(self.classes):
                raise ValueError(
                    f"{self.path}: the manifest names {len(self.classes)} classes, the model tells {found.shape[-1]} apart"
                )
            leaves = rule.leaves(found, at)
            logits[waiting[leaves]], exits[waiting[leaves]] = found[leaves], at
            waiting, reused = waiting[~leaves], [array[~leaves] for array in reused]
        return Predictions(logits, logits.argmax(-1), rule.confidence(logits).astype(np.float32), exits)

    def predict_files(self, images: Iterable[str | PathLike[str]], top: int = 5) -> list[dict[str, Any]]:
        """One dict for each file, see `answers`; a directory stands for the images in it."""

        def predict(pixels: Pixels) -> tuple[Pixels, int | None]:
            answer = self.predict(pixels[None])
            return softmax(answer.logits)[0], None if self.rule is None else int(answer.exit[0]) + 1

        if "preprocess" not in self.manifest:
            raise ValueError(f"{self.path / MANIFEST} does not say how an image becomes an input: preprocess is missing")
        as_trained = partial(prepare, description=self.manifest["preprocess"])
        return answer_files(images, self.classes, top, prepare=as_trained, predict=predict)

    def predict_samples(self, split: str | None, limit: int, top: int) -> list[dict[str, Any]]:
        """Refused: a bundle has no data set."""
        here = self.path
        raise ValueError(
            f"{here} is a bundle, which has no data set to take images of; name files: dynavit predict {here} photo.png"
        )

    def overview(self) -> dict[str, str]:
        """{label: text} about the model that answers."""
        return {"bundle": f"{self.path}: {', '.join(self.manifest['parts'])}", "classes": str(len(self.classes))}

    def text(self, answer: Mapping[str, Any]) -> str:
        """An answer as a line, without the name of the file."""
        return answer_line(answer)

    def surer_than(self, answer: Mapping[str, Any], score: float) -> dict[str, Any]:
        """The answer as it is: a classifier says one thing about an image."""
        return dict(answer)

    def drawn(self, answer: Mapping[str, Any]) -> Any:
        """Refused: bundles are of classifiers."""
        raise ValueError(f"{self.path} is a bundle of a classifier, whose answers are not drawn; leave --draw out")

    def _checked(self, images: Pixels) -> Pixels:
        wanted = tuple(self.manifest["input"])
        if images.ndim != 4 or images.shape[1:] != wanted:
            raise ValueError(
                f"{self.path}: got images of shape {images.shape}; the model takes (batch, {', '.join(map(str, wanted))})"
            )
        return np.ascontiguousarray(images, np.float32)


def load_bundle(path: str | PathLike[str], *, int8: bool = False, trust_pt2: bool = False) -> Bundle:
    """Open a bundle of `dynavit export`. Checksums are compared first, and a file that differs is not opened.

    Args:
        int8: its 8-bit model.
        trust_pt2: open .pt2 files, which can run any code of the one who made them. Checksums only find accidents.
    """
    directory = Path(path)
    manifest = read_manifest(directory)
    names = manifest["parts"]
    if not names:
        raise ValueError(f"{directory / MANIFEST}: parts is empty, so there is no model")
    if int8:
        if "int8" not in manifest:
            raise ValueError(f"{directory} holds no 8-bit model; export the run with --int8")
        names = [manifest["int8"]["file"]]
    if missing := [name for name in names if name not in manifest["files"]]:
        raise ValueError(f"{directory}: the manifest names {missing[0]} as a part of the model, but lists no such file")
    if manifest["backend"] not in PARTS:
        raise ValueError(f"{directory / MANIFEST}: the backend is {' or '.join(PARTS)}, not {manifest['backend']!r}")
    open_part = PARTS[manifest["backend"]]
    if open_part is Pt2Part and not trust_pt2:
        raise ValueError(
            f"{directory} is a .pt2 bundle and was not opened: such files can run any code of the one who made them, and "
            "checksums do not tell who that was. If you trust their origin, say --trust-pt2 (in Python trust_pt2=True); ONNX "
            "bundles need no trust"
        )
    rule = ExitRule.read(directory / POLICY) if POLICY in manifest["files"] else None
    if rule is not None and len(rule.thresholds) != len(names):
        raise ValueError(f"{directory / POLICY} is for {len(rule.thresholds)} exits, the bundle has {len(names)}")
    return Bundle(directory, manifest, [open_part(directory / name) for name in names], rule)


class OnnxPart:
    def __init__(self, file: Path) -> None:
        self.file = file

    @cached_property
    def session(self) -> Any:
        onnxruntime = require("onnxruntime", "export")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors only; warnings are about its own optimisations
        return onnxruntime.InferenceSession(self.file, options, providers=["CPUExecutionProvider"])

    def __call__(self, *arrays: Pixels) -> list[Pixels]:
        names = [each.name for each in self.session.get_inputs()]
        return list(self.session.run(None, dict(zip(names, arrays, strict=True))))


class Pt2Part:
    def __init__(self, file: Path) -> None:
        self.file = file

    @cached_property
    def module(self) -> Any:
        import torch

        return torch.export.load(self.file).module()

    def __call__(self, *arrays: Pixels) -> list[Pixels]:
        import torch

        with torch.no_grad():
            outputs = self.module(*map(torch.from_numpy, arrays))
        return [output.numpy() for output in (outputs if isinstance(outputs, tuple | list) else [outputs])]


PARTS: dict[str, type[OnnxPart] | type[Pt2Part]] = {"onnx": OnnxPart, "pt2": Pt2Part}  # by the manifest's backend
