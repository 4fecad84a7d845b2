"""Answers of a run or a bundle about files, or about samples of a data set. One interface for both.

Nothing at the top imports torch or training code: a bundle needs neither.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Protocol, Unpack

from ..deploy.bundle.manifest import is_bundle
from .subject import Subject, WhichOptions

DEFAULT_LIMIT = 16  # samples of a data set


class Predictor(Protocol):
    """Answers about files: a dict for each, {"image": path, ...}, or {"image", "error"} for one that cannot be read."""

    def predict_files(self, paths: Sequence[str | PathLike[str]], top: int = 5) -> list[dict[str, Any]]: ...

    def predict_samples(self, split: str | None, limit: int, top: int) -> list[dict[str, Any]]:
        """The same about samples of a data set, evenly over a split; they are named by their split and number."""
        ...

    def overview(self) -> dict[str, str]:
        """{label: text} about the model that answers."""
        ...

    def text(self, answer: Mapping[str, Any]) -> str:
        """An answer as a line, without the name of the file."""
        ...


def predictor(subject: Subject, *, int8: bool = False, trust_pt2: bool = False) -> Predictor:
    """The predictor of a run, or of a bundle of `dynavit export`."""
    if not is_bundle(subject.run):
        from .run_predictor import RunPredictor

        if int8:
            raise ValueError(f"{subject.run} is not a bundle, and only those hold 8-bit weights; see dynavit export --int8")
        return RunPredictor(subject)
    from ..deploy.bundle.runner import load_bundle

    if not subject.is_usual or subject.device not in (None, "cpu") or subject.data is not None:
        raise ValueError(
            f"{subject.run} is a bundle: one set of weights, for the CPU; leave --checkpoint, --weights, --data, --device out"
        )
    return load_bundle(subject.run, int8=int8, trust_pt2=trust_pt2)


def predict_run(
    run: str | PathLike[str] | Subject,
    images: Sequence[str | PathLike[str]] = (),
    *,
    top: int = 5,
    split: str | None = None,
    limit: int = DEFAULT_LIMIT,
    int8: bool = False,
    trust_pt2: bool = False,
    **which: Unpack[WhichOptions],
) -> list[dict[str, Any]]:
    """The answers of a run's model, or of a bundle, about image files; a directory stands for the images in it.

    One dict for each file, for a classifier {"image", "label", "confidence", "top": [{"label", "confidence"}, ...]}, or
    {"image", "error"}. A cascade stops as soon as the thresholds that `dynavit calibrate` stored allow, and "exit" says where,
    counted from 1. They were found for the last checkpoint; without them, or with another checkpoint, the last exit answers.

    Args:
        images: files and directories. Without any, samples of the run's data set, or of the one that `data` names.
        split: of these samples; test where there is one, otherwise val, if not given.
        limit: number of these samples, evenly over the split.
        int8: the 8-bit model of a bundle.
        trust_pt2: open a .pt2 bundle, which can run any code of the one who made it.
        which: the fields of `Subject`: checkpoint, weights, data, data_dir, device, strict.
    """
    asked = predictor(Subject.of(run, which), int8=int8, trust_pt2=trust_pt2)
    return asked.predict_files(images, top) if images else asked.predict_samples(split, limit, top)
