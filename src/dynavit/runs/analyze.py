"""Figures of the inside of trained models, several side by side on the same images.

The numbers behind each kind of figure, the figures (SVG, PNG) and an index that says how to read them go to the analysis
directory of the run, or for several runs of their comparison; the page shows all of them.
"""

import datetime
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from os.path import commonpath
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from ..analysis.inside.exits import ExitRecorder
from ..analysis.inside.look import look_inside
from ..analysis.report.inside.draw_all import KINDS, draw_all
from ..analysis.report.read import Comparison, Run, read_directory, read_run
from ..common.batch import Batch
from ..common.data import Data
from ..common.files import with_nulls, write_json
from ..convert.norm_kinds import norm_kinds
from ..data.dataset import DataSet
from ..data.picture import data_uri
from ..engine.progress import Progress
from ..models.cascade import Cascade
from ..models.stored_call import build_stored
from .directory import AnyDirectory, ComparisonDirectory, RunDirectory
from .opened import Opened
from .overview import overview_of_opened
from .report import write_report
from .subject import Subject, WhichOptions

BATCH = 16  # attention weights of a batch are held at once: 30 MB a layer for 16 images in ViT-B/16
GALLERY = 12  # images of each exit
LONGEST_NAME = 100  # of a directory


def analyze_runs(
    runs: Sequence[str | PathLike[str]],
    *,
    out: str | PathLike[str] | None = None,
    split: str | None = None,
    images: int = 128,
    shown: int = 2,
    layers: Sequence[str] = (),
    token: tuple[float, float] | None = None,
    progress: Progress | None = None,
    command: str = "",
    **which: Unpack[WhichOptions],
) -> Path:
    """Look inside the models of some runs, write numbers and figures, and return the path of the page that shows them.

    Args:
        runs: directories of runs. A comparison stands for its settings, each with its first seed.
        out: directory of the page; the run itself, or the comparison that all runs belong to, if not given.
        split: test where there is one, otherwise val, if not given.
        images: how many, evenly over the split, numbers are averaged over.
        shown: how many of them maps are drawn of.
        layers: norms that maps are drawn of, such as blocks.0.norm1; the first, middle and last if not given.
        token: whose positional weights are drawn, as shares of the image's height and width; the middle one if not given.
        which: the fields of `Subject`: checkpoint, weights, data, data_dir, device, strict. The data set is that of the first
            run if not given.
    """
    progress = progress or Progress()
    if images < 1 or shown < 1:
        raise ValueError(f"at least one image is looked at, and one is shown; got images={images}, shown={shown}")
    paths = _expanded(runs, progress)
    named = dict(zip(_names(paths), paths, strict=True))
    where = Path(out) if out is not None else _page_directory(paths)
    directory = AnyDirectory(where)
    with directory.alone(make=True):
        directory.analysis.mkdir(parents=True, exist_ok=True)  # before the work, which could not be kept otherwise
        return _analyze(named, where, split, images, shown, layers, token, progress, command, which)


def _analyze(
    paths: Mapping[str, Path],
    where: Path,
    split: str | None,
    images: int,
    shown: int,
    layers: Sequence[str],
    token: tuple[float, float] | None,
    progress: Progress,
    command: str,
    which: WhichOptions,
) -> Path:
    directory = AnyDirectory(where)
    data: Data | None = None
    kinds: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    pictures: list[dict[str, Any]] = []
    for name, path in paths.items():
        subject = Subject.of(path, which)
        opened = subject.open(data)
        if data is None:
            data = opened.data
            split = split or opened.final_split
        assert split is not None
        progress.overview(partial(overview_of_opened, opened, split, writes=directory.analysis))
        progress.note(f"looking inside {name}")
        some, _ = opened.limited(split, images)
        own = some.task.inside(_one_by_one(some, split, progress))
        data = data if own is not None else opened.images  # says what it is for, where there are no images
        found = own if own is not None else _look(some, split, shown, layers, token, progress)
        if lambdas := read_run(path).lambdas:
            found["lambda"] = lambdas
        classes = getattr(data, "classes", opened.card.classes)
        if classes != opened.card.classes:
            progress.note(f"{name} knows its classes by other names: {opened.card.classes[:3]}... not {classes[:3]}...")
        norm = opened.config.norm or next((kind for kind, _ in norm_kinds(opened.model).most_common(1)), "none")
        used = {name: value for name, value in opened.source.items() if name in ("checkpoint", "weights", "step")}
        source = {"path": str(path), "model": opened.config.model, **used}
        for kind, entry in found.items():
            kinds[kind].append({"name": name, "norm": norm, "source": source, **entry})
        if own is None:
            pictures = pictures or [picture.shown(some.images) for picture in _shown_images(some, split, shown)]
    assert data is not None and split is not None
    _same_unit(kinds["attention_distance"])
    common = {"images": min(images, len(data.splits[split])), "data": data.name, "split": split, "shown": pictures}
    for kind, entries in kinds.items():
        file = directory.analysis_file(kind)
        if entries:
            write_json(file, with_nulls({"kind": kind, **common, "runs": entries}))
        else:
            file.unlink(missing_ok=True)  # of an earlier call
    progress.note("drawing")
    about = {"created": datetime.datetime.now().isoformat(timespec="seconds"), "command": command}
    draw_all(where, **about)
    return write_report(where)


def _one_by_one(opened: Opened, split: str, progress: Progress) -> Iterator[Batch]:
    loader = opened.loader(split, 1, alone=True)
    progress.begin(0, loader.steps)
    try:
        for step, (batch,) in enumerate(loader.epoch(), 1):
            for message in batch.broken:
                progress.note(message)
            yield batch.to(opened.processes.device, opened.processes.dtype)
            progress.step(step)
    finally:
        progress.end()


def _look(
    opened: Opened,
    split: str,
    shown: int,
    layers: Sequence[str],
    token: tuple[float, float] | None,
    progress: Progress,
) -> dict[str, dict[str, Any]]:
    loader = opened.loader(split, BATCH)
    seen: list[Batch] = []  # without the images

    def batches() -> Generator[Tensor]:
        for step, (batch,) in enumerate(loader.epoch(), 1):
            for message in batch.broken:
                progress.note(message)
            if batch.count:
                seen.append(replace(batch, inputs=batch.inputs[:0]))
                yield batch.inputs[: batch.count].to(opened.processes.dtype)
            progress.step(step)

    torch.manual_seed(opened.config.seed)
    start = build_stored(opened.card.model)
    answers: list[Any] = []
    progress.begin(0, loader.steps)
    try:
        some = torch.stack([picture.pixels for picture in _shown_images(opened, split, shown)]).to(opened.processes.dtype)
        with closing(batches()) as reading:
            found = look_inside(opened.model, reading, some, layers=layers, start=start, token=token, outputs=answers)
    finally:
        progress.end()
    if isinstance(opened.model, Cascade):
        found["exits"] = _exits(opened, split, answers, seen)
    return found


def _exits(opened: Opened, split: str, answers: list[Any], seen: list[Batch]) -> dict[str, Any]:
    recorder = ExitRecorder()
    for logits, batch in zip(answers, seen, strict=True):
        recorder(logits, batch.targets[: batch.count])
    policy = opened.subject.policy()
    result, exits, predicted, confidence = recorder.exits(policy)
    numbers = [number for batch in seen for number in batch.index[: batch.count].tolist()]  # in the split
    leaving = [(exits == at).nonzero().flatten().tolist()[:GALLERY] for at in range(len(result["shares"]))]
    pictures = _images(opened, split, [numbers[i] for some in leaving for i in some])
    result["gallery"] = [
        [
            {
                **pictures[numbers[i]].shown(opened.images),
                "prediction": opened.card.classes[int(predicted[i])],
                "confidence": float(confidence[i]),
            }
            for i in some
        ]
        for some in leaving
    ]
    return result


@dataclass(frozen=True)
class Picture:
    """An image (c, h, w) as the model sees it, and its class."""

    pixels: Tensor
    target: int

    def shown(self, data: DataSet) -> dict[str, str]:
        return {"image": data_uri(self.pixels, data.mean, data.std), "target": data.classes[self.target]}


def _shown_images(opened: Opened, split: str, shown: int) -> list[Picture]:
    """Evenly again, for neighbours may be of one class."""
    count = len(opened.data.splits[split])
    shown = min(shown, count)
    found = _images(opened, split, [(2 * i + 1) * count // (2 * shown) for i in range(shown)])
    if not found:
        raise ValueError(f"none of the {shown} images of {opened.data.name} that shall be shown can be read")
    return list(found.values())


def _images(opened: Opened, split: str, numbers: Sequence[int]) -> dict[int, Picture]:
    """Images of a split by their numbers, without those that cannot be read."""
    few = replace(opened, data=opened.data.subset(split, torch.tensor(numbers, dtype=torch.int64)))
    return {
        numbers[int(number)]: Picture(pixels, int(target))
        for (batch,) in few.loader(split, BATCH).epoch()
        for number, pixels, target in list(zip(batch.index, batch.inputs, batch.targets, strict=True))[: batch.count]
    }


def _same_unit(runs: Sequence[dict[str, Any]]) -> None:
    """Distances of all runs in patches of the finest grid among them, so that they fit on one axis."""
    layers = [layer for run in runs for layer in run["layers"]]
    finest = max((layer["grid"][0] for layer in layers), default=1)
    for layer in layers:
        layer["unit"] = finest / layer["grid"][0]


def _expanded(runs: Sequence[str | PathLike[str]], progress: Progress) -> list[Path]:
    """Directories of runs; a comparison stands for the first finished seed of each of its settings."""
    paths: list[Path] = []
    for each in map(Path, runs):
        found = read_directory(each)
        if isinstance(found, Run):
            paths.append(each)
            continue
        if not isinstance(found, Comparison):
            raise ValueError(f"{each} holds figures, but no run; give the runs they are of")
        for setting in found.settings:
            finished = [each / run.name for run in setting.runs if RunDirectory(each / run.name).finished() is not None]
            paths += finished[:1]
            if not finished:
                progress.note(f"{each}: no run of {setting.name} is finished; it is left out")
    if not paths:
        raise ValueError("there is no finished run to look inside" if runs else "give a directory of a run, such as runs/x")
    if len({path.resolve() for path in paths}) < len(paths):
        raise ValueError(f"a run is given twice: {', '.join(map(str, paths))}")
    return paths


def _names(paths: Sequence[Path]) -> list[str]:
    """Short names that tell the runs apart."""
    names = [path.resolve().name for path in paths]
    if len(set(names)) == len(names):
        return names
    together = Path(commonpath([path.resolve() for path in paths]))
    return [str(path.resolve().relative_to(together)) for path in paths]


def _page_directory(paths: Sequence[Path]) -> Path:
    """The run; of several their comparison, or a new directory named after them beside them."""
    if len(paths) == 1:
        return paths[0]
    together = Path(commonpath([path.resolve() for path in paths]))
    if ComparisonDirectory(together).is_comparison():
        return together
    if together == Path(together.anchor):
        raise ValueError(f"{paths[0]} and {paths[-1]} have no directory in common; say with --out where the page shall be")
    name = "+".join(path.resolve().name for path in paths)
    return together / (name if len(name) <= LONGEST_NAME else f"{paths[0].resolve().name}+{len(paths) - 1}")
