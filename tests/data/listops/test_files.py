"""Files of ListOps: two formats, two line ends, a manifest, and a message with file and line for whatever does not fit."""

import json

import pytest
import torch

from dynavit.data.config import DataConfig
from dynavit.data.listops.files import read_file
from dynavit.data.listops.grammar import evaluate
from dynavit.data.open import list_data, open_data

ROWS = [("( ( ( [MAX 4 ) 2 ) ] )", 4), ("( ( ( ( [MED 1 ) 2 ) 9 ) ] )", 2), ("7", 7)]
ORIGINAL = [f"{label}\t{source}" for source, label in ROWS]
ARENA = ["Source\tTarget", *(f"{source}\t{label}" for source, label in ROWS)]
SMALL = {"train": 40, "val": 10, "test": 20}


def write(path, lines, end="\n"):
    path.write_bytes("".join(line + end for line in lines).encode())
    return path


def opened(data_dir=None, *, download=False, limit=0, strict=False, **options):
    return open_data("listops", data_dir, DataConfig(download=download, limit=limit, strict=strict, options=options))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("lines", [ORIGINAL, ARENA, ARENA[1:]], ids=["original", "arena", "no_header"])
def test_both_formats_and_both_line_ends(tmp_path, lines, end):
    rows = read_file(write(tmp_path / "x.tsv", lines, end), 10, check_labels=True)
    assert [evaluate(rows[row]) for row in range(3)] == rows.labels.tolist() == [4, 2, 7]
    assert rows[0] == bytes([12, 5, 3, 15])


def test_a_last_line_without_an_end_counts(tmp_path):
    (tmp_path / "x.tsv").write_bytes("\r\n".join(ARENA).encode())
    assert len(read_file(tmp_path / "x.tsv", 10)) == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[AVG 1 2 ]\t1", "unknown token '\\[AVG'"),
        ("[MAX 1 2\t2", "\\[MAX is never closed"),
        ("[MAX 1 2 ] ]\t2", "ends at token 4, but there are 5"),
        ("[MAX ]\t2", "has no arguments"),
        ("\t2", "there is no expression"),
        ("[MAX 1 2 ]\t10", "the label is '10'; labels are 0 to 9"),
        ("[MAX 1 2 ]\t-1", "the label is '-1'"),
        ("[MAX 1 2 ]\t", "the label is ''"),
        ("2\t( ( ( [MAX 1 ) 2 ) ] )", r"the label is '\( \( \( \[MAX 1'\.\.\.; labels"),  # the other format, cut short
        ("[MAX 1 2 ]\t2\r", "the label is '2\\\\r'"),  # two carriage returns
        ("[MAX 1 2 ]", "1 columns instead of"),
        ("", "1 columns instead of"),
        ("[MAX 1 2 3 4 5 6 7 8 9 ]\t9", "11 tokens, but there is room for 10"),
        ("[MAX 1 2 ]\t3", "the label is 3, but the expression's value is 2"),
    ],
)
def test_a_line_that_does_not_fit_is_named(tmp_path, line, message):
    file = write(tmp_path / "basic_train.tsv", [*ARENA, line], "\r\n")
    with pytest.raises(ValueError, match=f"basic_train.tsv:5: .*{message}"):
        read_file(file, 10, check_labels=True)


@pytest.mark.parametrize("content", [b"", b"Source\tTarget\r\n"])
def test_a_file_without_rows(tmp_path, content):
    (tmp_path / "x.tsv").write_bytes(content)
    with pytest.raises(ValueError, match="x.tsv: there are no rows"):
        read_file(tmp_path / "x.tsv", 10)
    (tmp_path / "x.tsv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="x.tsv: this is no text"):
        read_file(tmp_path / "x.tsv", 10)


def test_made_files_hold_what_is_made(tmp_path):
    made, written = opened(**SMALL), opened(tmp_path / "new", download=True, **SMALL)
    again = opened(tmp_path / "new", **SMALL)  # nothing is written twice
    assert "wrote 20 test, 10 val, 40 train rows" in written.notes[0] and not again.notes
    for data in (written, again, opened(tmp_path / "new")):
        assert data.width == made.width == 200
        for name, split in made.splits.items():
            assert [split[row] for row in range(len(split))] == [data.splits[name][row] for row in range(len(split))]
            assert torch.equal(split.labels, data.splits[name].labels)
    assert {len(split) for split in written.splits.values()} == {40, 10, 20}
    first = (tmp_path / "new" / "basic_test.tsv").read_bytes()
    assert first.startswith(b"Source\tTarget\r\n( ") and first.count(b"\r\n") == 21
    manifest = json.loads((tmp_path / "new" / "manifest.json").read_text())
    assert manifest["generator"]["version"] == 1 and sum(manifest["files"]["basic_val.tsv"]["labels"]) == 10


def test_made_files_that_changed_or_do_not_fit_are_refused(tmp_path):
    opened(tmp_path, download=True, **SMALL)
    with pytest.raises(ValueError, match="were made with seed=0, not 3"):
        opened(tmp_path, seed=3)
    file = tmp_path / "basic_val.tsv"
    file.write_bytes(file.read_bytes().replace(b"\t", b"\t1", 1))
    with pytest.raises(ValueError, match="basic_val.tsv is not the file that manifest.json describes"):
        opened(tmp_path)


def test_files_of_others(tmp_path):
    """The original has no validation split, so one is cut; names of files are found by the split in them."""
    write(tmp_path / "train_d20s.tsv", ORIGINAL * 10)
    write(tmp_path / "test_d20s.tsv", ORIGINAL)
    data = opened(tmp_path)
    assert {name: len(split) for name, split in data.splits.items()} == {"test": 3, "train": 27, "val": 3}
    assert data.notes == ("validation: 3 of 30 training rows, split_seed=0",) and data.width == 2000
    assert opened(tmp_path, max_length=50).width == 50 and opened(tmp_path, pad_to=64).width == 64
    with pytest.raises(ValueError, match="options.seed is about expressions that are made here, but .* another origin"):
        opened(tmp_path, seed=1)
    with pytest.raises(ValueError, match="test_d20s.tsv:2: 5 tokens, but there is room for 4"):
        opened(tmp_path, pad_to=4)
    write(tmp_path / "train_more.tsv", ORIGINAL)
    with pytest.raises(ValueError, match="train_d20s.tsv and train_more.tsv could both be the split train"):
        opened(tmp_path)


def test_folders_without_files(tmp_path):
    with pytest.raises(ValueError, match="holds no .tsv file with train, val or test"):
        opened(tmp_path)
    with pytest.raises(ValueError, match="is no folder; leave --data-dir out"):
        opened(tmp_path / "nowhere")


def test_limits_and_options():
    data = opened(limit=15, **SMALL)
    whole = opened(**SMALL)
    assert [data.splits["train"][row] for row in range(15)] == [whole.splits["train"][row] for row in range(15)]
    assert len(data.splits["train"]) == 15 and len(data.splits["test"]) == 20
    assert "listops" in list_data() and "Long Range Arena" in list_data()["listops"]
    with pytest.raises(ValueError, match="unknown option of the data set listops 'max_len'. Did you mean 'max_length'"):
        opened(max_len=3)
    with pytest.raises(ValueError, match="padded to 100"):
        opened(pad_to=100, **SMALL)
    with pytest.raises(ValueError, match="loading.options.train=0"):
        opened(train=0, val=1, test=1)
    with pytest.raises(ValueError, match="image_size is about images"):
        open_data("listops", None, DataConfig(image_size=32))
