"""Folders packed into tar files: the same samples, whole after a kill, nothing silently lost."""

import io
import json
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dynavit.common.lock import BusyError, only_writer
from dynavit.data import pack as packing
from dynavit.data.config import DataConfig
from dynavit.data.open import open_data
from dynavit.data.read_image import read_image
from dynavit.engine.progress import Progress
from dynavit.runs import pack as verb
from dynavit.runs.pack import pack_folder

SMALL = {"size": 16, "shard_images": 3}


@pytest.fixture
def folder(tmp_path) -> Path:
    """Five images of two classes to train on and two to validate; large ones, small ones, one that has to be turned."""
    root, generator = tmp_path / "photos", np.random.default_rng(0)

    def write(place, size, **options):
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(generator.integers(0, 256, (4, 4, 3), dtype=np.uint8))
        coarse.resize(size, Image.Resampling.BICUBIC).save(root / place, **options)

    turned = Image.Exif()
    turned[0x0112] = 6
    write("train/cat/a.jpg", (40, 30))
    write("train/cat/b.jpg", (14, 12))
    write("train/cat/c.png", (10, 30))
    write("train/dog/a.jpg", (60, 20), exif=turned)
    write("train/dog/b.bmp", (12, 9))
    write("val/cat/a.jpg", (30, 31))
    write("val/dog/a.jpg", (30, 32))
    return root


class Heard(Progress):
    def __init__(self):
        self.notes, self.steps = [], []

    def begin(self, done, total):
        self.steps.append((done, total))

    def step(self, done):
        self.steps.append(done)

    def note(self, text):
        self.notes.append(text)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_samples_keep_order_labels_and_class_names(folder, tmp_path):
    heard = Heard()
    index = pack_folder(folder, tmp_path / "packed", **SMALL, progress=heard)
    assert heard.steps == [(0, 7), *range(1, 8)] and not heard.notes
    assert [shard["file"] for shard in index["shards"]] == ["train-00000.tar", "train-00001.tar", "val-00000.tar"]
    assert [shard["images"] for shard in index["shards"]] == [3, 2, 2] and index["images"] == {"train": 5, "val": 2}
    before = open_data("auto", folder, DataConfig(image_size=16))
    after = open_data("auto", tmp_path / "packed", DataConfig(image_size=16))
    assert after.name == "wds/" and after.classes == before.classes == ["cat", "dog"]
    for split in ("train", "val"):
        assert after.splits[split].labels.tolist() == before.splits[split].labels.tolist()
        for path, place in zip(before.splits[split].paths, after.splits[split].keys, strict=True):
            image, packed = read_image(path), after.splits[split].read(place)
            if min(image.size) <= 16:
                # JPEG and PNG files are stored to the byte; a BMP file has become JPEG.
                assert path.endswith("bmp") or packed.tobytes() == image.tobytes()
                assert packed.size == image.size
                continue
            assert min(packed.size) == 16 and packed.size == tuple(16 * side // min(image.size) for side in image.size)
            written = io.BytesIO()
            image.resize(packed.size, Image.Resampling.BICUBIC).save(written, "JPEG", quality=90)
            assert packed.tobytes() == Image.open(written).tobytes()


def test_after_a_kill_complete_files_stay_and_the_result_is_the_same(folder, tmp_path, monkeypatch):
    pack_folder(folder, tmp_path / "whole", **SMALL)
    out, calls = tmp_path / "killed", []

    def killed(*arguments):
        if len(calls) == 4:  # in the second tar file
            (out / ".train-00001.tar.0a1b.tmp").write_bytes(b"half")  # as SIGKILL leaves it
            raise KeyboardInterrupt
        calls.append(arguments)
        return smaller(*arguments)

    smaller = packing.smaller
    monkeypatch.setattr(packing, "smaller", killed)
    with pytest.raises(KeyboardInterrupt):
        pack_folder(folder, out, **SMALL)
    assert [shard["file"] for shard in json.loads((out / "index.json").read_text())["shards"]] == ["train-00000.tar"]
    monkeypatch.setattr(packing, "smaller", lambda *arguments: calls.append(arguments) or smaller(*arguments))
    calls.clear()
    heard = Heard()
    pack_folder(folder, out, **SMALL, progress=heard)
    assert len(calls) == 4 and heard.steps[0] == (3, 7)
    assert contents(out) == contents(tmp_path / "whole")
    calls.clear()
    pack_folder(folder, out, **SMALL)
    assert not calls


def test_a_damaged_file_is_made_again_and_named(folder, tmp_path):
    out, heard = tmp_path / "packed", Heard()
    pack_folder(folder, out, **SMALL)
    whole = contents(out)
    damaged = bytearray(whole["val-00000.tar"])
    damaged[700] ^= 1
    (out / "val-00000.tar").write_bytes(damaged)
    (out / "train-00001.tar").unlink()
    pack_folder(folder, out, **SMALL, progress=heard)
    assert contents(out) == whole
    assert [note.split("/")[-1] for note in heard.notes] == [
        f"{name} is missing or damaged, and is made again" for name in ("train-00001.tar", "val-00000.tar")
    ]


def test_what_cannot_be_read_is_left_out_counted_and_named(folder, tmp_path):
    broken = folder / "train/cat/b.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    heard = Heard()
    index = pack_folder(folder, tmp_path / "packed", **SMALL, progress=heard)
    assert [shard["images"] for shard in index["shards"]] == [2, 2, 2]
    assert [message.split(":")[0] for message in index["shards"][0]["broken"]] == [f"cannot read image {broken}"]
    assert len(heard.notes) == 1 and str(broken) in heard.notes[0]
    assert open_data("auto", tmp_path / "packed").splits["train"].labels.tolist() == [0, 0, 1, 1]
    for out in ("packed", "other"):
        with pytest.raises(ValueError, match=r"b.jpg.*without --strict it would be left out"):
            pack_folder(folder, tmp_path / out, **SMALL, strict=True)
    for path in (folder / "val").rglob("*.jpg"):
        path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="none of the 2 images for .*val-00000.tar can be read"):
        pack_folder(folder, tmp_path / "third", **SMALL)


def test_another_size_other_files_and_a_foreign_folder_are_refused(folder, tmp_path):
    out = tmp_path / "packed"
    pack_folder(folder, out, **SMALL)
    with pytest.raises(ValueError, match="was packed with size 16, not 20"):
        pack_folder(folder, out, size=20, shard_images=3)
    with pytest.raises(ValueError, match="was packed with quality 90, not 80"):
        pack_folder(folder, out, **SMALL, quality=80)
    (folder / "val/dog/a.jpg").write_bytes((folder / "val/cat/a.jpg").read_bytes())
    with pytest.raises(ValueError, match="other files, or of files that have changed"):
        pack_folder(folder, out, **SMALL)
    with pytest.raises(ValueError, match="holds 'train/'.*which pack has not written"):
        pack_folder(folder, folder, **SMALL)
    assert not (folder / "index.json").exists()
    (out / "index.json").write_text("{}")
    with pytest.raises(ValueError, match=r"index.json is damaged"):
        pack_folder(folder, out, **SMALL)


def test_one_writer(folder, tmp_path, monkeypatch):
    """The lock is held while tar files are written."""
    refused = []

    def other():
        try:
            with only_writer(tmp_path / "packed"):
                pass
        except BusyError as error:
            refused.append(error)

    def meanwhile(*arguments):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return write_shard(*arguments)

    write_shard = verb.write_shard
    monkeypatch.setattr(verb, "write_shard", meanwhile)
    pack_folder(folder, tmp_path / "packed", **SMALL)
    assert len(refused) == 3


@pytest.mark.slow
def test_several_processes_write_the_same(folder, tmp_path):
    pack_folder(folder, tmp_path / "one", **SMALL)
    heard = Heard()
    pack_folder(folder, tmp_path / "two", **SMALL, processes=2, progress=heard)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert heard.steps == [(0, 7), *range(1, 8)]
