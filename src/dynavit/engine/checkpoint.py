"""Checkpoints that survive a kill at any moment.

    checkpoints/last/       the newest           model.safetensors, ema.safetensors and task.safetensors (if there is
                                                 such a thing), state.pt, manifest.json
    checkpoints/previous/   the one before
    checkpoints/best/       the one with the best validation metric so far

One is written in a directory beside, forced to disk, and renamed. The manifest comes last and holds size and SHA-256 of the
other files, so that a truncated, altered or foreign file is noticed, and the run goes on from the one before.
"""

import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..common.files import force_to_disk, read_json, write_json, writing
from ..common.fits import Count, check_fits
from ..common.stored_shapes import StoredFile
from ..runs.directory import Best
from .clock import ClockState

MODEL, EMA, TASK = "model.safetensors", "ema.safetensors", "task.safetensors"
STATE, MANIFEST = "state.pt", "manifest.json"
FORMAT = "dynavit checkpoint 1"

MOVES = 20  # of a checkpoint that is being read, before something else must be wrong
BETWEEN_RENAMES = 0.05  # seconds: in a run that is training, nothing may stand at a checkpoint's name for a moment

T = TypeVar("T")


class DamagedCheckpointError(ValueError):
    """A file of a checkpoint is missing, truncated, altered, or not ours. The message names it."""


@dataclass
class Snapshot:
    """All that is stored: whole tensors on the CPU by name, and the rest of the state as plain numbers and tensors.

    Attributes:
        model: the model's state.
        ema: its running average, if one is kept.
        state: step, optimiser, clock and the like.
        task: the state that the task has beside its model's, if it has any.
    """

    model: dict[str, Tensor]
    ema: dict[str, Tensor] | None
    state: dict[str, Any]
    task: dict[str, Tensor] | None = None


class Checkpoints:
    """The checkpoints of one run. Only one process writes them. `depends_on`: facts that each of them carries."""

    def __init__(self, directory: Path, depends_on: Mapping[str, Any] | None = None) -> None:
        self.directory, self.depends_on = directory, depends_on
        self.last, self.previous, self.best = (directory / name for name in ("last", "previous", "best"))
        self.loaded: Path | None = None

    def save(self, snapshot: Snapshot) -> None:
        """Make this the last one, and the last one the previous."""
        self._remove_remains()
        fresh = self._temporary()
        write_checkpoint(fresh, snapshot, self.depends_on)
        if self.last.exists():
            if self.previous.exists():
                self.previous.rename(self._temporary())
            self.last.rename(self.previous)
        fresh.rename(self.last)
        force_to_disk(self.directory)
        self._remove_remains()

    def mark_best(self, source: Path | None = None) -> None:
        """Make the last one also the best one. No bytes are copied where the file system knows hard links."""
        fresh = self._temporary()
        with _removed_if_unfinished(fresh):
            fresh.mkdir()
            for file in sorted((source or self.last).iterdir()):
                with writing(fresh / file.name):
                    _link_or_copy(file, fresh / file.name)
            force_to_disk(fresh)
        if self.best.exists():
            self.best.rename(self._temporary())
        fresh.rename(self.best)
        force_to_disk(self.directory)
        self._remove_remains()

    def load(self, check: Callable[[Snapshot], None], note: Callable[[str], None]) -> Snapshot | None:
        """The newest good one, None if there is none at all. `check` raises ValueError for one that does not fit the run.

        What is wrong with a newer one goes to `note`. One process then has to `settle`.
        """
        problems: list[str] = []
        for path in (self.last, self.previous):
            if not path.exists():
                continue
            try:
                snapshot = read_checkpoint(path)
                check(snapshot)
            except ValueError as error:
                problems.append(str(error) if str(path) in str(error) else f"{path}: {error}")
                continue
            for problem in problems:
                note(f"{problem}; going on from {path.name}, step {snapshot.state['step']}")
            self.loaded = path
            return snapshot
        if problems:
            raise ValueError(f"no checkpoint in {self.directory} can be used: {'; '.join(problems)}")
        return None

    def settle(self, is_best: bool) -> None:
        """After `load`: finish what an interrupted session left undone."""
        self._remove_remains()
        if self.loaded == self.previous and self.last.exists():
            # It cannot be used. Left in its place, the next save would let it displace the good one.
            aside = self.directory / "damaged"
            if aside.exists():
                shutil.rmtree(aside)
            self.last.rename(aside)
        if is_best:  # the session may have ended between saving and marking
            self.mark_best(self.loaded)

    def _temporary(self) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        return self.directory / f".{secrets.token_hex(4)}.tmp"

    def _remove_remains(self) -> None:
        for path in self.directory.glob(".*.tmp"):
            shutil.rmtree(path)


def write_checkpoint(path: Path, snapshot: Snapshot, depends_on: Mapping[str, Any] | None = None) -> None:
    """Files of a checkpoint in a new directory, forced to disk, the manifest last."""
    with _removed_if_unfinished(path):
        path.mkdir()
        for name, tensors in ((MODEL, snapshot.model), (EMA, snapshot.ema), (TASK, snapshot.task)):
            if tensors is not None:
                with writing(path / name, SafetensorError):
                    save_file(_separate(tensors), path / name, metadata={"format": "pt"})
        with writing(path / STATE, RuntimeError):
            torch.save(snapshot.state, path / STATE)
        files = {}
        for file in sorted(path.iterdir()):
            force_to_disk(file)
            files[file.name] = {"bytes": file.stat().st_size, "sha256": _sha256(file)}
        about = {} if depends_on is None else {"depends_on": depends_on}
        write_json(path / MANIFEST, {"format": FORMAT, "step": snapshot.state["step"], "files": files, **about})


@contextmanager
def _removed_if_unfinished(path: Path) -> Iterator[None]:
    """Half a checkpoint is of no use, and takes the space that a full disk does not have."""
    try:
        yield
    except BaseException:  # KeyboardInterrupt too
        shutil.rmtree(path, ignore_errors=True)
        raise


class Manifest(TypedDict):
    """manifest.json of a checkpoint."""

    format: str
    step: Count
    files: dict[str, StoredFile]
    depends_on: NotRequired[dict[str, Any]]  # what the run gave, if anything


class State(TypedDict):
    """The part of state.pt that is needed to go on; see `Trainer.snapshot`."""

    step: Count
    total: Count
    steps_per_epoch: Count
    optimiser: dict[str, dict[str, Tensor]]
    scaler: dict[str, float]
    ema_updates: Count
    window: dict[str, Tensor]
    window_steps: Count
    window_images: Count
    best: Best | None
    log_size: Count
    clock: ClockState


def read_manifest(path: Path) -> dict[str, Any]:
    """See `Manifest`; not compared with the files, which `verify_checkpoint` does."""
    try:
        return read_json(path / MANIFEST, Manifest)
    except FileNotFoundError:
        raise DamagedCheckpointError(f"{path / MANIFEST} is missing, so nothing says whether {path} is complete") from None
    except ValueError as error:
        raise DamagedCheckpointError(str(error)) from error


def has_average(path: Path) -> bool:
    """Whether it holds averaged weights; those are then the usual ones."""
    return unmoved(path, lambda: EMA in read_manifest(path)["files"])


def unmoved(path: Path, read: Callable[[], T]) -> T:
    """The result of `read`, which reads files of the checkpoint `path`, all of them of the same one.

    A run in training renames its checkpoints and makes new ones, and never changes one; so one that still stands in its place
    afterwards was read from beginning to end. Otherwise it is read again.
    """
    if os.name != "posix":
        return read()  # directories cannot be opened there
    for _ in range(MOVES):
        try:
            directory = os.open(path, os.O_RDONLY)  # held open, so that no new directory gets its number
        except FileNotFoundError:
            time.sleep(BETWEEN_RENAMES)
            continue
        try:
            result = read()
            if _stands_at(directory, path):
                return result
        except (DamagedCheckpointError, FileNotFoundError):
            if _stands_at(directory, path):
                raise
        finally:
            os.close(directory)
    raise DamagedCheckpointError(f"{path} cannot be read: it is replaced all the time, or gone; try again")


def _stands_at(directory: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(directory), path.stat())
    except FileNotFoundError:
        return False


def read_checkpoint(path: Path) -> Snapshot:
    """A whole checkpoint, after comparing every file with the manifest. DamagedCheckpointError names what is wrong."""
    return unmoved(path, lambda: _read_checkpoint(path))


def _read_checkpoint(path: Path) -> Snapshot:
    files = verify_checkpoint(path)
    try:
        state = torch.load(path / STATE, map_location="cpu", weights_only=True)
        check_fits(dict[str, Any], state)
    except Exception as error:  # torch raises whatever its unpickler trips over
        raise DamagedCheckpointError(f"{path / STATE} cannot be read: {_first_line(error)}") from error
    ema, task = (read_weights(path, name) if name in files else None for name in (EMA, TASK))
    return Snapshot(read_weights(path, MODEL), ema, state, task)


def read_weights(path: Path, name: str = MODEL) -> dict[str, Tensor]:
    """The tensors of MODEL, EMA or TASK, on the CPU."""
    try:
        return load_file(path / name)
    except (SafetensorError, OSError) as error:
        raise DamagedCheckpointError(f"{path / name} cannot be read: {_first_line(error)}") from error


def verify_checkpoint(path: Path) -> set[str]:
    """Compare the files with the manifest and return their names."""
    manifest = read_manifest(path)
    kind = manifest["format"]
    expected = {name: (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
    if kind != FORMAT or not {MODEL, STATE} <= expected.keys():
        raise DamagedCheckpointError(f"{path / MANIFEST} describes {kind!r}, this version reads {FORMAT!r}")
    for name, (size, digest) in expected.items():
        file = path / name
        if Path(name).name != name:
            raise DamagedCheckpointError(f"{path / MANIFEST} names {name!r}, which is not a file of the checkpoint")
        if not file.is_file():
            raise DamagedCheckpointError(f"{file} is missing")
        if file.stat().st_size != size:
            raise DamagedCheckpointError(f"{file} has {file.stat().st_size} bytes instead of {size}: truncated or replaced")
        if _sha256(file) != digest:
            raise DamagedCheckpointError(f"{file} was altered: its SHA-256 is not the manifest's")
    return set(expected)


def _separate(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors with memory of their own: safetensors knows no tied weights."""
    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        own = tensor.contiguous()
        separate[name] = own.clone() if own.untyped_storage().data_ptr() in seen else own
        seen.add(own.untyped_storage().data_ptr())
    return separate


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _link_or_copy(file: Path, target: Path) -> None:
    try:
        os.link(file, target)
    except OSError:  # some network and FAT file systems
        shutil.copyfile(file, target)
        force_to_disk(target)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
