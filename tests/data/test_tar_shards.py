"""Tar files as of webdataset: indexed, numbered, read at their places."""

import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dynavit.data.config import DataConfig
from dynavit.data.tar_shards import index_shard, open_shards


def png(number: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (3, 2), (number, 0, 0)).save(buffer, "png")
    return buffer.getvalue()


def write_tar(path: Path, files: dict[str, bytes], mode: str = "w") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def samples(*labels: int, first: int = 0) -> dict[str, bytes]:
    files = {}
    for i, label in enumerate(labels, first):
        files |= {f"dir.x/{i:03}.png": png(i), f"dir.x/{i:03}.cls": b"%d\n" % label, f"dir.x/{i:03}.json": b"{}"}
    return files


def red(split) -> list[int]:
    return [int(np.asarray(split.read(key))[0, 0, 0]) for key in split.keys]


def test_shards_of_all_splits(tmp_path):
    write_tar(tmp_path / "set-train-0001.tar", samples(1, first=2))
    write_tar(tmp_path / "set-train-0000.tar", samples(0, 2))
    write_tar(tmp_path / "more/validation/0.tar", samples(2, 0, first=7))
    data = open_shards("", tmp_path, DataConfig(image_size=32))
    assert set(data.splits) == {"train", "val"} and data.classes == ["0", "1", "2"] and data.image_size == (32, 32)
    assert data.splits["train"].labels.tolist() == [0, 2, 1] and red(data.splits["train"]) == [0, 1, 2]
    assert data.splits["val"].labels.tolist() == [2, 0] and red(data.splits["val"]) == [7, 8]
    assert red(pickle.loads(pickle.dumps(data.splits["train"]))) == [0, 1, 2]
    assert set(open_shards("more", tmp_path, DataConfig()).splits) == {"val"}


def test_a_cut_keeps_images_and_labels_together(tmp_path):
    write_tar(tmp_path / "train.tar", samples(*[i % 2 for i in range(20)]))
    data = open_shards("", tmp_path, DataConfig(val_fraction=0.3))
    assert len(data.splits["val"]) == 6
    for split in data.splits.values():
        assert [number % 2 for number in red(split)] == split.labels.tolist()


def test_a_broken_image_is_named(tmp_path):
    shard = write_tar(tmp_path / "val.tar", {"a.jpg": b"broken", "a.cls": b"0"})
    split = open_shards("", tmp_path, DataConfig()).splits["val"]
    with pytest.raises(ValueError, match=f"cannot read image a of {shard}"):
        split.read(split.keys[0])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.png": png(0)}, "each sample needs an image .* and a .cls file, but one lacks: a"),
        ({"a.cls": b"0"}, "but one lacks: a"),
        ({"a.png": png(0), "a.cls": b"-1"}, "a.cls holds b'-1', not a label"),
        ({"a.txt": b"0"}, "holds no samples"),
    ],
)
def test_samples_that_are_not_whole(tmp_path, files, message):
    with pytest.raises(ValueError, match=message):
        index_shard(write_tar(tmp_path / "x.tar", files))


def test_what_is_no_tar_file_or_says_not_what_for(tmp_path):
    with pytest.raises(ValueError, match="x.tar: .*without compression"):
        index_shard(write_tar(tmp_path / "x.tar", samples(0), "w:gz"))
    with pytest.raises(ValueError, match="x.tar should have one of the words train, val, test"):
        open_shards("", tmp_path, DataConfig())
    with pytest.raises(ValueError, match="no tar files in .*absent"):
        open_shards("absent", tmp_path, DataConfig())
    with pytest.raises(ValueError, match="data wds/ needs data_dir"):
        open_shards("", None, DataConfig())


def test_a_label_that_would_make_a_billion_classes(tmp_path):
    write_tar(tmp_path / "train.tar", samples(0, 1, 999_999_999))
    with pytest.raises(ValueError, match="the labels go up to 999999999, but only 3 of them have images"):
        open_shards("", tmp_path, DataConfig())
