"""Answers of a run or a bundle about files, or about samples of a data set. One interface for both.

Nothing at the top imports torch or training code: a bundle needs neither.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from ..common.files import replacing
from ..deploy.bundle.manifest import is_bundle
from .subject import Subject, WhichOptions

if TYPE_CHECKING:
    from PIL.Image import Image

DEFAULT_LIMIT = 16  # samples of a data set
DEFAULT_SCORE = 0.5
PICTURES = (".png", ".jpg", ".jpeg", ".webp")  # files that `draw_answers` writes


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

    def surer_than(self, answer: Mapping[str, Any], score: float) -> dict[str, Any]:
        """An answer without what the model is less sure of; as it is, where there is one thing to say about a file."""
        ...

    def drawn(self, answer: Mapping[str, Any]) -> "Image":
        """The picture that an answer is about, with the answer on it; ValueError where that cannot be."""
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
    score: float = DEFAULT_SCORE,
    draw: str | PathLike[str] | None = None,
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
        score: leave out what a detector is less sure of; a classifier's answer stays as it is.
        draw: also draw the answers onto their pictures: a file for one image, otherwise a directory.
        which: the fields of `Subject`: checkpoint, weights, data, data_dir, device, strict.
    """
    asked = predictor(Subject.of(run, which), int8=int8, trust_pt2=trust_pt2)
    found = asked.predict_files(images, top) if images else asked.predict_samples(split, limit, top)
    answers = [asked.surer_than(answer, score) for answer in found]
    if draw is not None:
        draw_answers(asked, answers, Path(draw))
    return answers


def draw_answers(asked: Predictor, answers: Sequence[Mapping[str, Any]], out: Path) -> list[Path]:
    """Write the pictures that answers are about, with the answers on them; the files that were written.

    `out` is a file for one answer, and otherwise a directory, where pictures keep their names. Images without an answer are
    left out.
    """
    answered = [answer for answer in answers if "error" not in answer]
    is_file = out.suffix.lower() in PICTURES
    if is_file and len(answers) > 1:
        raise ValueError(f"--draw {out} is one picture, and there are {len(answers)} images; name a directory")
    if not is_file and out.suffix:
        raise ValueError(f"--draw {out}: pictures end in {', '.join(PICTURES)}; a name without an ending is a directory")
    files: list[Path] = []
    for answer in answered:
        file = out if is_file else _free(out, Path(str(answer["image"])).stem.replace(" ", "-"), files)
        picture = asked.drawn(answer)
        with replacing(file) as temporary:
            picture.save(temporary, {".png": "PNG", ".webp": "WEBP"}.get(file.suffix.lower(), "JPEG"))
        files.append(file)
    return files


def _free(directory: Path, name: str, taken: Sequence[Path]) -> Path:
    """A file's name that no other picture of these has: a.png, a-2.png ..."""
    file, number = directory / f"{name}.png", 1
    while file in taken:
        number += 1
        file = directory / f"{name}-{number}.png"
    return file
