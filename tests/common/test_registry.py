import hashlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dynavit.common import plugins as plugins_module
from dynavit.common import registry as registry_module
from dynavit.common.plugins import load_plugin, loaded_plugins, require_guests
from dynavit.common.registry import Registry, UnknownNameError, guests_used, nearest_match_error

NAMES = ["dtn", "dtn_released", "ln", "rms"]


def test_the_nearest_name_is_suggested_and_all_are_listed():
    error = nearest_match_error("norm", "dtm", NAMES)
    assert str(error) == "unknown norm 'dtm'. Did you mean 'dtn'? Known: dtn, dtn_released, ln, rms"


def test_case_does_not_matter():
    assert "Did you mean 'rms'?" in str(nearest_match_error("norm", "RMS", NAMES))


def test_nothing_near_means_no_suggestion():
    assert str(nearest_match_error("norm", "zzzz", ["ln"])) == "unknown norm 'zzzz'. Known: ln"


def test_it_can_be_caught_as_a_value_error():
    with pytest.raises(ValueError, match="unknown norm"):
        raise nearest_match_error("norm", "x", NAMES)
    assert issubclass(UnknownNameError, ValueError)


# ---- The table


def a_table(monkeypatch) -> Registry:
    """Two words of ours, one of them imported when asked for, in a table of its own."""
    monkeypatch.setattr(registry_module, "REGISTRIES", tables := {})
    monkeypatch.setattr(plugins_module, "REGISTRIES", tables)
    table: Registry = Registry("thing", entry_points="dynavit.things", built_in={"path": "pathlib:Path"})
    return table


def guest_file(tmp_path: Path, text: str = "") -> ModuleType:
    file = tmp_path / "somebody.py"
    file.write_text(text or "class Thing: ...\n")
    return load_plugin(file)


def test_what_is_built_in_is_imported_when_asked_for(monkeypatch):
    table = a_table(monkeypatch)
    assert table.names() == ["path"] and "path" in table and table["path"] is Path
    assert table.guest("path") is None


def test_a_guest_knows_its_file(tmp_path, monkeypatch):
    table, module = a_table(monkeypatch), guest_file(tmp_path)
    assert table.register("mine")(module.Thing) is module.Thing is table["mine"]
    guest = table.guest("mine")
    assert guest.file == str(tmp_path / "somebody.py") and guest.kind == "thing"
    assert guest.sha256 == hashlib.sha256((tmp_path / "somebody.py").read_bytes()).hexdigest()


def test_names_are_not_taken_over(tmp_path, monkeypatch):
    table, module = a_table(monkeypatch), guest_file(tmp_path)
    with pytest.raises(ValueError, match="'path' is registered already, by dynavit"):
        table.register("path")(module.Thing)
    table.register("mine")(module.Thing)
    table.register("mine")(module.Thing)  # a notebook cell that runs twice
    with pytest.raises(ValueError, match=r"'mine' is registered already, by .*somebody\.py"):
        table.register("mine")(Registry)
    with pytest.raises(ValueError, match="letters, digits"):
        table.register("my norm")(module.Thing)


def test_an_unknown_name_lists_guests_too(tmp_path, monkeypatch):
    table, module = a_table(monkeypatch), guest_file(tmp_path)
    table.register("mine")(module.Thing)
    with pytest.raises(UnknownNameError, match="Did you mean 'mine'"):
        table["mime"]


def test_guests_in_use_are_collected(tmp_path, monkeypatch):
    table, module = a_table(monkeypatch), guest_file(tmp_path)
    table.register("mine")(module.Thing)
    with guests_used() as used:
        table["path"]
        assert not used
        table["mine"]
    table["mine"]
    assert used == {("thing", "mine"): table.guest("mine")}


def test_entry_points_are_listed_and_imported_only_by_name(tmp_path, monkeypatch):
    package = tmp_path / "offers-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: offers\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[dynavit.things]\noffered = offering:Thing\npath = offering:Thing\n")
    (tmp_path / "offering.py").write_text("class Thing: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    table = a_table(monkeypatch)
    assert table.names() == ["offered", "path"] and "offering" not in sys.modules
    assert table["path"] is Path  # ours stays ours
    assert table["offered"].__module__ == "offering"
    assert table.guest("offered").file == str(tmp_path / "offering.py")


def test_what_a_run_needs_and_is_missing_is_named(tmp_path, monkeypatch):
    table, module = a_table(monkeypatch), guest_file(tmp_path)
    needs = [{"kind": "thing", "name": "mine", "file": "elsewhere/somebody.py", "sha256": "0123456789"}]
    with pytest.raises(
        ValueError, match=r"runs/x was made with the thing 'mine' of elsewhere/somebody\.py \(SHA-256 01234567"
    ) as told:
        require_guests(needs, "runs/x")
    assert "--plugin" in str(told.value)
    table.register("mine")(module.Thing)
    (note,) = require_guests(needs, "runs/x")
    assert "has changed since runs/x" in note
    needs[0]["sha256"] = table.guest("mine").sha256
    assert require_guests(needs, "runs/x") == []


# ---- Files of the user's own


def test_a_plugin_runs_once(tmp_path):
    module = guest_file(tmp_path, "count = 0\n")
    module.count += 1
    assert load_plugin(tmp_path / "somebody.py") is module
    assert (tmp_path / "somebody.py") in loaded_plugins()


def test_bad_plugins_are_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        load_plugin(tmp_path / "missing.py")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(ValueError, match=r"broken.*ZeroDivisionError: division by zero"):
        load_plugin(tmp_path / "broken.py")
    (tmp_path / "text.txt").write_text("x = 1")
    with pytest.raises(ValueError, match="not a Python file"):
        load_plugin(tmp_path / "text.txt")
