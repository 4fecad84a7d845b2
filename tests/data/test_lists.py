"""`path label` lists: what is read, and errors that name file and line."""

from pathlib import Path

import pytest

from data.image_files import write_image
from dynavit.data import lists
from dynavit.data.config import DataConfig
from dynavit.data.lists import open_lists


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for i, name in enumerate(["a.png", "b.png", "with two  spaces.png", "sub/c 7.png", "#d.png"]):
        write_image(tmp_path / "images" / name, i)
    return tmp_path


def write(root: Path, text: str, name: str = "train.txt") -> Path:
    (root / name).write_bytes(text.encode())
    return root / name


def opened(root: Path, train: str, val: str | None = None, **options):
    config = DataConfig(train_root=root / "images", train_list=write(root, train), val_fraction=0, **options)
    if val is not None:
        config.val_root, config.val_list = root / "images", write(root, val, "val.txt")
    return open_lists(None, config)


def test_paths_with_spaces_comments_and_empty_lines(root):
    text = "\ufeffa.png 0\r\n\r\n# a.png 7\n  with two  spaces.png\t 1 \nsub/c 7.png 2\n./#d.png 0\n"
    data = opened(root, text, "b.png 1\n")
    images = root / "images"
    assert [Path(p) for p in data.splits["train"].paths] == [
        images / "a.png",
        images / "with two  spaces.png",
        images / "sub/c 7.png",
        images / "#d.png",
    ]
    assert data.splits["train"].labels.tolist() == [0, 1, 2, 0]
    assert data.splits["val"].labels.tolist() == [1]
    assert data.classes == ["0", "1", "2"] and data.name == "list"


def test_where_paths_begin(root):
    listed = write(root / "images", "a.png 0\nb.png 1\n")
    expected = [str(root / "images/a.png"), str(root / "images/b.png")]
    assert open_lists(None, DataConfig(train_list=listed, val_fraction=0)).splits["train"].paths == expected
    listed = write(root, "a.png 0\nb.png 1\n")
    assert open_lists(root / "images", DataConfig(train_list=listed, val_fraction=0)).splits["train"].paths == expected
    listed = write(root, f"{expected[0]} 0\n{expected[1]} 1\n")
    assert open_lists(Path("/"), DataConfig(train_list=listed, val_fraction=0)).splits["train"].paths == expected


def test_a_list_for_evaluation_only(root):
    config = DataConfig(val_list=write(root, "a.png 1\nb.png 0\n"), val_root=root / "images")
    data = open_lists(None, config)
    assert list(data.splits) == ["val"] and data.classes == ["0", "1"]


@pytest.mark.parametrize(
    "line", ["b.png -1", "b.png 1.0", "b.png one", "b.png", "7", "b.png 1_0", "b.png ²", "b.png 9999999999"]
)
def test_lines_that_are_not_path_and_label(root, line):
    with pytest.raises(ValueError) as caught:
        opened(root, f"a.png 0\n\n{line}\n")
    assert str(caught.value).startswith(f"{root / 'train.txt'}:3: expected `path label`") and repr(line) in str(caught.value)


def test_paths_that_lead_nowhere(root, monkeypatch):
    with pytest.raises(ValueError) as caught:
        opened(root, "a.png 0\nsub 1\n")
    assert f"{root / 'train.txt'}:2: there is no image {root / 'images/sub'};" in str(caught.value)
    monkeypatch.setattr(lists, "CHECKED", 1)  # later ones are found when they are read
    assert len(opened(root, "a.png 0\nabsent.png 1\n").splits["train"]) == 2


def test_gaps_and_labels_of_the_other_list(root):
    with pytest.raises(ValueError, match=r"train.txt: labels go up to 3, but no image has label 1;"):
        opened(root, "a.png 0\nb.png 3\n")
    with pytest.raises(ValueError, match=r"val.txt:3: label 2, but those of train are 0 to 1"):
        opened(root, "a.png 0\nb.png 1\n", "a.png 0\n# no\nb.png 2\n")


def test_nothing_to_read(root):
    with pytest.raises(ValueError, match=r"train.txt: names no images"):
        opened(root, "# nothing\n")
    with pytest.raises(ValueError, match="data list needs loading.train_list, or loading.val_list"):
        open_lists(root, DataConfig())
    with pytest.raises(ValueError, match="there is no file .*absent.txt"):
        open_lists(root, DataConfig(train_list=root / "absent.txt"))
    (root / "binary.txt").write_bytes(b"a.png 0\n\xff\xfe")
    with pytest.raises(ValueError, match="binary.txt: is not text in UTF-8 .* at byte 8"):
        open_lists(root, DataConfig(train_list=root / "binary.txt"))
