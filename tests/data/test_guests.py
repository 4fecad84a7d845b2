"""Data sets that stand in a user's own file, opened, loaded and refused by name."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import dynavit
from data.guest_files import SHADES, STRIPES, SUMS
from dynavit.common import plugins
from dynavit.common.registry import UnknownNameError, guests_used
from dynavit.data.config import AugmentConfig, DataConfig
from dynavit.data.loader import make_loader
from dynavit.data.open import DATA, list_data, open_data


@pytest.fixture
def plug_in(tmp_path, monkeypatch):
    """Load a file with this text; its data sets are forgotten after the test."""
    monkeypatch.setattr(DATA, "_things", dict(DATA._things))
    monkeypatch.setattr(DATA, "_guests", dict(DATA._guests))
    monkeypatch.setattr(plugins, "_files", {})

    def load(text):
        (tmp_path / "mine.py").write_text(text)
        return plugins.load_plugin(tmp_path / "mine.py")

    return load


RETURNING = """
import dynavit, torch
from types import SimpleNamespace

def having(**members):
    return SimpleNamespace(**dict(name="x", splits={"val": [1]}, notes=(), task="t", loader=1, describe=1, subset=1) | members)

@dynavit.register_data("wrong")
def open_wrong(data_dir, config):
    return """


def returning(plug_in, what):
    """Open a data set whose opener returns this expression."""
    plug_in(RETURNING + what)
    return open_data("wrong")


# ---- Images in memory


def test_images_of_a_guest_get_what_loading_offers(plug_in, tmp_path):
    plug_in(STRIPES)
    with guests_used() as used:
        data = open_data("stripes", None, DataConfig(image_size=10, val_fraction=0.25, limit=8))
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 8, "val": 10, "test": 40}
    assert data.image_size == (10, 10) and len(data.notes) == 3 and data.task == "classification"
    assert used["data set", "stripes"].file == str(tmp_path / "mine.py")
    (batch,) = next(make_loader(data, "train", train=True, batch_size=4, augment=AugmentConfig(mixup=1.0)).epoch())
    assert batch.inputs.shape == (4, 1, 10, 10) and batch.targets.shape == (4, 2)
    assert data.describe() == {
        "classes": ["upright", "lying"],
        "preprocess": {"kind": "memory", "stored_size": [8, 8], "image_size": [10, 10], "mean": [0.5], "std": [0.5]},
    }


def test_options_of_a_guest_have_the_type_that_it_names(plug_in):
    plug_in(STRIPES)
    with pytest.raises(ValueError, match="loading.options.width='wide': a whole number"):
        open_data("stripes", None, DataConfig(options={"width": "wide"}))


@pytest.mark.parametrize("kind", ["Iterable[int]", "'OfACheckerOnly'"])
def test_types_that_nobody_can_check_are_left_to_the_guest(plug_in, kind):
    plug_in("from collections.abc import Iterable\n" + STRIPES.replace("width: int", f"width: {kind}"))
    assert open_data("stripes", None, DataConfig(options={"width": 2})).splits


def test_an_opener_may_be_any_callable(plug_in):
    plain = STRIPES.replace('@dynavit.register_data("stripes")', "")
    plug_in(plain + '\nfrom functools import partial\ndynavit.register_data("stripes")(partial(open_stripes, width=2))')
    assert open_data("stripes").splits


def test_its_first_line_is_listed(plug_in):
    assert "stripes" not in list_data()
    plug_in(STRIPES)
    assert list_data()["stripes"] == "Stripes, upright and lying"


def test_installed_packages_offer_theirs(plug_in, tmp_path, monkeypatch):
    package = tmp_path / "offers-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: offers\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[dynavit.data]\noffered = offered_data:open_it\nbroken = nowhere:open_it\n")
    (tmp_path / "offered_data.py").write_text(STRIPES.replace("open_stripes", "open_it"))
    monkeypatch.syspath_prepend(tmp_path)
    about = list_data()
    assert (
        about["offered"] == "Stripes, upright and lying" and "ModuleNotFoundError: No module named 'nowhere'" in about["broken"]
    )
    assert open_data("offered").name == "stripes"


def test_its_options_are_the_arguments_after_the_star(plug_in):
    plug_in(STRIPES)
    thin = open_data("stripes", None, DataConfig(options={"width": 1})).splits["test"].images
    assert thin[0, 0, 0].tolist() == [0, 255] * 4
    with pytest.raises(UnknownNameError, match="unknown option of the data set stripes 'widht'. Did you mean 'width'?"):
        open_data("stripes", None, DataConfig(options={"widht": 1}))


def test_labels_of_a_guest_are_checked(plug_in):
    plug_in(STRIPES.replace('["upright", "lying"]', '["upright"]'))
    with pytest.raises(ValueError, match="stripes, split train: image 20 has label 1, but labels are 0 to 0"):
        open_data("stripes")


# ---- Images that something keeps, read by other processes


@pytest.mark.parametrize("workers", [0, 1])
def test_workers_know_the_classes_of_a_plug_in(plug_in, workers):
    plug_in(SHADES)
    data = open_data("shades")
    loader = make_loader(data, "test", train=False, batch_size=3, config=DataConfig(workers=workers))
    first, second = [batch for (batch,) in loader.epoch()]
    assert (first.inputs[:, 0, 0, 0] * 255).round().tolist() == [1, 2] and first.broken == ["cannot paint 3"]
    assert (second.inputs[:, 0, 0, 0] * 255).round().tolist() == [4] and second.targets.tolist() == [1]


# ---- A loader of its own


def sequences(loader, epoch=0):
    """Sample number -> (its tokens, its target), over counting samples."""
    found = {}
    for batches in loader.epoch(epoch):
        for batch in batches:
            for i in range(batch.count):
                tokens = batch.inputs["tokens"][i][batch.inputs["mask"][i]].tolist()
                found[int(batch.index[i])] = tokens, int(batch.targets[i])
    return found


def test_sequences_with_a_mask(plug_in):
    plug_in(SUMS)
    data = open_data("sums", None, DataConfig(options={"longest": 9}))
    loader = make_loader(data, "train", train=True, batch_size=4, dtype=torch.float64)
    (batch,) = next(loader.epoch())
    assert {name: (value.dtype, len(value)) for name, value in batch.inputs.items()} == {
        "tokens": (torch.int64, 4),
        "mask": (torch.bool, 4),
        "share": (torch.float64, 4),
    }
    wanted = {i: (tokens.tolist(), int(tokens.sum() % 10)) for i, tokens in enumerate(data.splits["train"])}
    assert sequences(loader) == wanted and loader.steps == 4 and loader.samples == 15
    ranks = [make_loader(data, "train", train=True, batch_size=4, rank=rank, world=2) for rank in range(2)]
    assert sequences(ranks[0], 1) | sequences(ranks[1], 1) == wanted
    few = data.subset("test", torch.tensor([5, 1]))
    assert list(sequences(make_loader(few, "test", train=False, batch_size=4)).values()) == [
        (tokens.tolist(), int(tokens.sum() % 10)) for tokens in (data.splits["test"][5], data.splits["test"][1])
    ]
    assert data.task == "sums" and len(few.splits["train"]) == 15


def test_an_option_without_default_has_to_be_given(plug_in):
    plug_in(SUMS)
    with pytest.raises(ValueError, match="the data set sums needs --loading.options.longest"):
        open_data("sums")


def test_a_split_it_lacks_is_named(plug_in):
    plug_in(SUMS)
    with pytest.raises(ValueError, match="sums has no split 'val'; it has train, test"):
        make_loader(open_data("sums", None, DataConfig(options={"longest": 3})), "val", train=False, batch_size=4)


# ---- What an opener may return


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("None", r"'wrong' of .*mine\.py: its opener returned None, which has no name, splits, notes, task, loader, describe"),
        ("SimpleNamespace(name='x')", "class SimpleNamespace, which has no splits, notes, task, loader, describe, subset;"),
        ("having(splits=[1])", "splits is an object of class list; it has to be a dict"),
        ("having(splits={'all': [1]})", "splits has all, but none of train, val, test"),
        ("having(splits={})", "splits has nothing, but none of"),
        ("having(splits={'val': iter([1])})", "the split 'val' is an object of class list_iterator, which has no length"),
        ("having(splits={'val': []})", "the split 'val' is empty"),
        ("dynavit.DataSet('x', {'train': [1]}, ['a'], (8, 8), (0.5,), (0.5,))", "x: the split 'train' is a list; a DataSet is"),
        ("dynavit.MemorySplit(torch.zeros(3, 1, 8, 8), torch.zeros(3).long())", r"uint8 of shape .*not torch.float32"),
        ("dynavit.MemorySplit(torch.zeros(3, 8, 8).byte(), torch.zeros(3).long())", r"not torch.uint8 of shape \(3, 8, 8\)"),
        ("dynavit.MemorySplit(torch.zeros(3, 1, 8, 8).byte(), torch.zeros(2).long())", r"int64 of shape \(3,\), not .*\(2,\)"),
        ("dynavit.MemorySplit(torch.zeros(3, 1, 8, 8).byte(), torch.zeros(3))", r"int64 of shape \(3,\), not torch.float32"),
    ],
)
def test_what_is_missing_is_said(plug_in, what, message):
    with pytest.raises(ValueError, match=message):
        returning(plug_in, what)


@pytest.mark.parametrize(
    ("mean", "std", "message"), [((0.5,) * 3, (0.5,) * 3, "1 channels, mean and std have 3"), ((0.5,), (1, 1), "std has 2")]
)
def test_channels_have_to_agree(mean, std, message):
    split = dynavit.MemorySplit(torch.zeros(3, 1, 8, 8).byte(), torch.zeros(3).long())
    with pytest.raises(ValueError, match=message):
        dynavit.DataSet("x", {"train": split}, ["a"], (8, 8), mean, std)


def test_an_object_with_all_of_it_is_a_data_set(plug_in):
    assert isinstance(returning(plug_in, "having()"), SimpleNamespace)


# ---- The door


def test_the_door_opens_without_torch_until_it_is_used():
    code = "import dynavit, sys; assert 'torch' not in sys.modules; import dynavit.data.config; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout == "False\n", run.stderr
    assert dynavit.register_data.__module__ == "dynavit.data.open"
