"""CIFAR from small folders in the official forms, made here."""

import hashlib
import pickle
import socket
import struct

import numpy as np
import pytest
import torch

from dynavit.common.torchvision_shim import ensure_torchvision
from dynavit.data import cifar, downloads
from dynavit.data.cifar_versions import unpickle
from dynavit.data.config import DataConfig
from dynavit.data.open import open_data

PER_FILE = 40
TEN = [f"class{i}" for i in range(10)]
HUNDRED = [f"class{i}" for i in range(100)]


def records(seed, classes=10, count=PER_FILE):
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (count, 3072), np.uint8), np.arange(count) % classes


# What Python 2 and numpy wrote: byte strings, integers, lists and arrays in pickle protocol 2, opcode by opcode.


def python2(value) -> bytes:
    return b"\x80\x02" + _opcodes(value) + b"."


def _opcodes(value) -> bytes:
    if isinstance(value, dict):
        return b"}(" + b"".join(_opcodes(k) + _opcodes(v) for k, v in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(_opcodes, value)) + b"e"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_opcodes, value)) + b"t"
    if value is None:
        return b"N"
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return b"T" + struct.pack("<i", len(value)) + value
    assert isinstance(value, np.ndarray) and value.dtype == np.uint8
    kind = b"cnumpy\ndtype\n" + _opcodes(("u1", 0, 1)) + b"R" + _opcodes((3, "|", None, None, None, -1, -1, 0)) + b"b"
    state = b"(" + _opcodes(1) + _opcodes(value.shape) + kind + b"I00\n" + _opcodes(value.tobytes()) + b"t"
    return b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + _opcodes((0,)) + b"U\x01btR" + state + b"b"


def write_python10(folder):
    folder.mkdir(parents=True)
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        pixels, labels = records(i)
        content = {"batch_label": name, "labels": labels.tolist(), "data": pixels, "filenames": ["a.png"] * PER_FILE}
        (folder / name).write_bytes(python2(content))
    (folder / "batches.meta").write_bytes(python2({"num_cases_per_batch": PER_FILE, "label_names": TEN, "num_vis": 3072}))


def write_binary10(folder):
    folder.mkdir(parents=True)
    for i, name in enumerate([*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]):
        pixels, labels = records(i)
        (folder / name).write_bytes(np.concatenate([labels[:, None].astype(np.uint8), pixels], 1).tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(TEN) + "\n\n")


def write_python100(folder):
    folder.mkdir(parents=True)
    for i, (name, count) in enumerate([("train", 200), ("test", 100)]):
        pixels, labels = records(i, 100, count)
        content = {"fine_labels": labels.tolist(), "coarse_labels": (labels // 5).tolist(), "data": pixels}
        (folder / name).write_bytes(python2(content))
    (folder / "meta").write_bytes(python2({"fine_label_names": HUNDRED, "coarse_label_names": ["x"] * 20}))


def write_binary100(folder):
    folder.mkdir(parents=True)
    for i, (name, count) in enumerate([("train.bin", 200), ("test.bin", 100)]):
        pixels, labels = records(i, 100, count)
        both = np.stack([labels // 5, labels], 1).astype(np.uint8)
        (folder / name).write_bytes(np.concatenate([both, pixels], 1).tobytes())
    (folder / "fine_label_names.txt").write_text("\n".join(HUNDRED))


FORMS = {
    ("cifar10", "cifar-10-batches-py"): write_python10,
    ("cifar10", "cifar-10-batches-bin"): write_binary10,
    ("cifar100", "cifar-100-python"): write_python100,
    ("cifar100", "cifar-100-binary"): write_binary100,
}


def accept_small_ones(monkeypatch, folder):
    """Take the sums of these files for the official ones."""
    sums = {file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    monkeypatch.setattr(cifar, "MD5", {file: sums.get(file, "none") for file in cifar.MD5})
    monkeypatch.setattr(cifar, "IMAGES", {"train.bin": 200, "test.bin": 100})


@pytest.fixture(params=FORMS, ids="-".join)
def form(request, tmp_path, monkeypatch):
    name, folder = request.param
    FORMS[name, folder](tmp_path / folder)
    accept_small_ones(monkeypatch, tmp_path / folder)
    return name, tmp_path / folder


@pytest.fixture
def binary(tmp_path, monkeypatch):
    write_binary10(tmp_path / "cifar-10-batches-bin")
    accept_small_ones(monkeypatch, tmp_path / "cifar-10-batches-bin")
    return tmp_path / "cifar-10-batches-bin"


@pytest.mark.parametrize("given", ["parent", "itself"])
def test_every_form_gives_the_same_images(form, given):
    name, folder = form
    data = open_data(name, folder.parent if given == "parent" else folder, DataConfig(val_fraction=0))
    train = [records(i) for i in range(5)] if name == "cifar10" else [records(0, 100, 200)]
    test = records(5) if name == "cifar10" else records(1, 100, 100)
    assert torch.equal(
        data.splits["train"].images, torch.from_numpy(np.concatenate([pixels for pixels, _ in train])).view(-1, 3, 32, 32)
    )
    assert data.splits["train"].labels.tolist() == [label for _, labels in train for label in labels]
    assert torch.equal(data.splits["test"].images.flatten(1), torch.from_numpy(test[0]))
    assert data.splits["test"].labels.tolist() == test[1].tolist()
    assert data.classes == (TEN if name == "cifar10" else HUNDRED)
    assert (data.image_size, data.channels, data.mirrored) == ((32, 32), 3, True)


@pytest.mark.parametrize("form", [form for form in FORMS if form[1] != "cifar-100-binary"], ids="-".join, indirect=True)
def test_a_flipped_bit_is_found(form):
    name, folder = form
    file = next(file for file in sorted(folder.iterdir()) if "test" in file.name)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError) as error:
        open_data(name, folder)
    for part in (str(file), hashlib.md5(content).hexdigest(), cifar.MD5[file.name]):
        assert part in str(error.value)


def test_the_official_sums_refuse_other_files(tmp_path):
    write_binary10(tmp_path / "cifar-10-batches-bin")
    with pytest.raises(ValueError, match="data_batch_1.bin is damaged: .* the official one 5dd7e06a14cb22eb9f671a540d1b7c25"):
        open_data("cifar10", tmp_path)


def test_a_missing_file_is_named(binary):
    (binary / "data_batch_4.bin").unlink()
    for given in (binary, binary.parent):
        with pytest.raises(FileNotFoundError, match=r"cifar-10-batches-bin lacks data_batch_4.bin; .*--download"):
            open_data("cifar10", given)


def test_what_was_looked_for_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=rf"neither cifar-100-python nor cifar-100-binary in {tmp_path}; .*--download"):
        open_data("cifar100", tmp_path)
    with pytest.raises(ValueError, match="cifar10 is not part of the package: say where it is with --data-dir"):
        open_data("cifar10")


@pytest.mark.parametrize(("name", "write"), [("cifar10", write_python10), ("cifar100", write_python100)])
def test_downloads_go_through_torchvision_and_only_when_asked(name, write, tmp_path, monkeypatch):
    ensure_torchvision()
    from torchvision import datasets

    fetched = []

    def fetch(root, download):
        folder = root / cifar.VERSIONS[name][0].folder
        write(folder)
        accept_small_ones(monkeypatch, folder)
        fetched.append(download)

    monkeypatch.setattr(datasets, name.upper(), fetch)
    monkeypatch.setattr(downloads, "require_network", lambda address, what: None)
    with pytest.raises(FileNotFoundError):
        open_data(name, tmp_path)
    assert fetched == []
    assert open_data(name, tmp_path, DataConfig(download=True)).name == name
    assert fetched == [True]
    open_data(name, tmp_path, DataConfig(download=True))  # now it is there
    assert fetched == [True]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for config in (DataConfig(download=True), DataConfig()):  # without --data-dir in a cache, where it is found again
        assert open_data(name, None, config).name == name
    assert fetched == [True, True] and (tmp_path / "cache" / "dynavit" / "data" / name).is_dir()


def test_downloads_that_fail_say_why(tmp_path, monkeypatch):
    ensure_torchvision()
    from torchvision import datasets

    def broken(root, download):
        raise RuntimeError("File not found or\ncorrupted.")

    monkeypatch.setattr(datasets, "CIFAR10", broken)
    with socket.socket() as taken:  # nobody listens there
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(ValueError, match=r"cifar10 cannot be fetched: .* nothing answers at www.cs.toronto.edu"):
            open_data("cifar10", tmp_path / "new", DataConfig(download=True))
    assert not (tmp_path / "new").exists()
    monkeypatch.setattr(downloads, "require_network", lambda address, what: None)
    with pytest.raises(ValueError, match=r"could not be fetched into \S+new \(File not found or corrupted.\); try again"):
        open_data("cifar10", tmp_path / "new", DataConfig(download=True))


def test_a_wrong_label_is_found(binary, monkeypatch):
    file = binary / "test_batch.bin"
    content = bytearray(file.read_bytes())
    content[3073 * 7] = 10
    file.write_bytes(content)
    accept_small_ones(monkeypatch, binary)
    with pytest.raises(ValueError, match="cifar10, split test: image 7 has label 10, but labels are 0 to 9"):
        open_data("cifar10", binary)


def test_a_class_without_images_is_found(binary, monkeypatch):
    for i in range(1, 6):
        file = binary / f"data_batch_{i}.bin"
        content = np.frombuffer(file.read_bytes(), np.uint8).reshape(-1, 3073).copy()
        content[content[:, 0] == 3, 0] = 4
        file.write_bytes(content.tobytes())
    accept_small_ones(monkeypatch, binary)
    with pytest.raises(ValueError, match=r"1 of 10 classes have no image: 3 \(class3\)"):
        open_data("cifar10", binary)


@pytest.mark.parametrize(("cut", "message"), [(100, "cut off"), (3074, "199 images and 199 labels, 200 expected")])
def test_a_truncated_file_without_sum_is_found(tmp_path, monkeypatch, cut, message):
    folder = tmp_path / "cifar-100-binary"
    write_binary100(folder)
    accept_small_ones(monkeypatch, folder)
    (folder / "train.bin").write_bytes((folder / "train.bin").read_bytes()[:-cut])
    with pytest.raises(ValueError, match=message) as error:
        open_data("cifar100", tmp_path)
    assert "train.bin" in str(error.value)


def test_missing_class_names_are_found(binary):
    (binary / "batches.meta.txt").write_text("cat\ndog\n")
    with pytest.raises(ValueError, match=r"batches.meta.txt: 2 class names, 10 expected"):
        open_data("cifar10", binary)


class Harm:
    def __reduce__(self):
        return (print, ("this was executed",))


@pytest.mark.parametrize("harm", [pickle.dumps({"data": Harm()}, protocol=2), b"cos\nsystem\n(S'true'\ntR."], ids=["2", "0"])
def test_pickles_can_call_nothing(harm, capsys):
    with pytest.raises(ValueError, match=r"asks for (__builtin__.print|os.system), which no CIFAR file needs"):
        unpickle(harm)
    assert capsys.readouterr().out == ""
