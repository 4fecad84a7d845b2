"""An image folder as tar files of small images, with an index. A verb without a run: what it writes is a data set."""

from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from ..common.files import read_json, write_json
from ..common.lock import only_writer
from ..common.owned import foreign_files, in_words, names
from ..data.config import DataConfig
from ..data.dataset import FileSplit
from ..data.fingerprint import fingerprint
from ..data.folder import open_folder
from ..data.pack import INDEX, Index, Shard, checksum, write_shard
from ..engine.progress import Progress
from ..engine.worker_pool import run_jobs, say

OURS = names(r"index\.json", r"(?:train|val|test)-\d{5,}\.tar")


class Job(NamedTuple):
    """What `write_shard` is called with, but for `tick`."""

    path: Path
    files: list[str]
    labels: list[int]
    first: int
    size: int
    quality: int


def pack_folder(
    data: str | PathLike[str],
    out: str | PathLike[str],
    *,
    size: int = 256,
    quality: int = 90,
    shard_images: int = 2000,
    processes: int = 1,
    strict: bool = False,
    progress: Progress | None = None,
) -> Index:
    """Write the images of a folder into tar files in `out`; returns the index.

    Called again after it was killed it keeps complete tar files, compared by checksum, and makes the others. Called again on a
    complete one it only compares. An image that cannot be read is left out and named in the index.

    Args:
        data: a folder as of `--data folder`: train/<class>/..., val/<class>/..., or only <class>/...
        size: shorter side in pixels; smaller images stay as they are.
        quality: of JPEG, 1 to 95.
        shard_images: images of one tar file.
        processes: that work at once.
        strict: stop at an image that cannot be read.
    """
    out, progress = Path(out), progress or Progress()
    splits, classes = _images(Path(data).expanduser())
    wanted: Index = {
        "size": size,
        "quality": quality,
        "shard_images": shard_images,
        "classes": classes,
        "source": {name: fingerprint(split) for name, split in splits.items()},
        "images": {name: len(split) for name, split in splits.items()},
        "shards": [],
    }
    jobs = {job.path.name: job for job in _jobs(splits, wanted, out)}
    out.mkdir(parents=True, exist_ok=True)
    with only_writer(out):
        known = {name: shard for name, shard in _complete(out, wanted, progress).items() if not (strict and shard["broken"])}
        total, done = sum(wanted["images"].values()), sum(len(jobs[name].files) for name in known)
        progress.begin(done, total)

        def tick(_: object = None) -> None:
            nonlocal done
            done += 1
            progress.step(done)

        def finished(name: str, shard: Shard) -> None:
            if strict and shard["broken"]:
                raise ValueError(f"{shard['broken'][0]} (without --strict it would be left out)")
            for message in shard["broken"]:
                progress.note(f"{message}; it is left out")
            known[name] = shard
            _write(out, wanted, jobs, known)

        missing = {name: job for name, job in jobs.items() if name not in known}
        try:
            if processes > 1 and len(missing) > 1:
                run_jobs(_in_worker, missing, min(processes, len(missing)), heard=tick, finished=finished)
            else:
                for name, job in missing.items():
                    finished(name, write_shard(*job, tick))
        finally:
            progress.end()
        return _write(out, wanted, jobs, known)


def _images(data: Path) -> tuple[dict[str, FileSplit], list[str]]:
    """All splits as they lie in the folder: none is cut, nothing is limited."""
    opened = open_folder(data, DataConfig(val_fraction=0))
    return {name: split for name, split in opened.splits.items() if isinstance(split, FileSplit)}, opened.classes


def _jobs(splits: dict[str, FileSplit], wanted: Index, out: Path) -> list[Job]:
    found = []
    for name, split in splits.items():
        labels = split.labels.tolist()
        for at, first in enumerate(range(0, len(split), wanted["shard_images"])):
            part = slice(first, first + wanted["shard_images"])
            path = out / f"{name}-{at:05}.tar"
            found.append(Job(path, list(split.paths[part]), labels[part], first, wanted["size"], wanted["quality"]))
    return found


def _complete(out: Path, wanted: Index, progress: Progress) -> dict[str, Shard]:
    """Records of the tar files that are there and whole; ValueError if `out` holds something else."""
    if foreign := foreign_files(out, OURS):
        raise ValueError(f"{out} holds {in_words(foreign)}, which pack has not written; choose a new or empty folder")
    for left in out.glob(".*.tmp"):
        left.unlink()  # half a file of a process that was killed: we hold the lock, so nobody writes it
    if not (out / INDEX).exists():
        return {}
    index: Index = read_json(out / INDEX, Index)
    for name, before, now in (
        ("size", index["size"], wanted["size"]),
        ("quality", index["quality"], wanted["quality"]),
        ("shard_images", index["shard_images"], wanted["shard_images"]),
    ):
        if before != now:
            raise ValueError(f"{out} was packed with {name} {before}, not {now}; go on with that, or choose another folder")
    if (index["classes"], index["source"]) != (wanted["classes"], wanted["source"]):
        raise ValueError(f"{out} was packed of other files, or of files that have changed since; choose another folder")
    whole = {}
    for shard in index["shards"]:
        path = out / shard["file"]
        if path.is_file() and checksum(path) == shard["sha256"]:
            whole[shard["file"]] = shard
        else:
            progress.note(f"{path} is missing or damaged, and is made again")
    return whole


def _write(out: Path, wanted: Index, jobs: dict[str, Job], known: dict[str, Shard]) -> Index:
    index: Index = {**wanted, "shards": [known[name] for name in jobs if name in known]}
    write_json(out / INDEX, index)
    return index


def _in_worker(*job: Any) -> Shard:
    return write_shard(*Job(*job), tick=lambda: say(None))
