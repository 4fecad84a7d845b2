"""What is stored comes back, and what is damaged is noticed, named and passed over."""

import json
import os
import shutil

import pytest
import torch

from dynavit.engine.checkpoint import (
    EMA,
    MANIFEST,
    MODEL,
    STATE,
    Checkpoints,
    DamagedCheckpointError,
    Snapshot,
    read_checkpoint,
    read_weights,
    write_checkpoint,
)


def snapshot(step, ema=True):
    weights = {"w": torch.full((3, 2), float(step)), "count": torch.tensor(step)}
    state = {"step": step, "optimiser": {"w": {"exp_avg": torch.ones(2) * step}}, "best": None}
    return Snapshot(weights, {name: tensor * 2 for name, tensor in weights.items()} if ema else None, state)


def fits(_):
    pass


def saved(tmp_path, *steps):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for step in steps:
        checkpoints.save(snapshot(step))
    return checkpoints


def steps_of(checkpoints):
    return {path.name: json.loads((path / MANIFEST).read_text())["step"] for path in sorted(checkpoints.directory.iterdir())}


@pytest.mark.parametrize("ema", [True, False])
def test_what_is_stored_comes_back(tmp_path, ema):
    write_checkpoint(tmp_path / "c", snapshot(3, ema))
    back = read_checkpoint(tmp_path / "c")
    assert torch.equal(back.model["w"], torch.full((3, 2), 3.0)) and back.model["count"].dtype == torch.int64
    assert back.state["step"] == 3 and torch.equal(back.state["optimiser"]["w"]["exp_avg"], torch.full((2,), 3.0))
    assert (back.ema is not None) == ema == (tmp_path / "c" / EMA).exists()
    if ema:
        assert torch.equal(read_weights(tmp_path / "c", EMA)["w"], torch.full((3, 2), 6.0))


def test_tied_and_transposed_weights(tmp_path):
    weight = torch.arange(6.0).reshape(2, 3)
    write_checkpoint(tmp_path / "c", Snapshot({"a": weight, "b": weight, "c": weight.t()}, None, {"step": 0}))
    back = read_checkpoint(tmp_path / "c").model
    assert torch.equal(back["a"], weight) and torch.equal(back["b"], weight) and torch.equal(back["c"], weight.t())


def test_last_previous_and_best(tmp_path):
    checkpoints = saved(tmp_path, 1)
    assert steps_of(checkpoints) == {"last": 1}
    checkpoints.mark_best()
    for step in (2, 3):
        checkpoints.save(snapshot(step))
    assert steps_of(checkpoints) == {"best": 1, "last": 3, "previous": 2}
    checkpoints.mark_best()
    assert steps_of(checkpoints) == {"best": 3, "last": 3, "previous": 2}
    assert (checkpoints.best / MODEL).samefile(checkpoints.last / MODEL)  # a link, not a copy
    assert read_checkpoint(checkpoints.best).state["step"] == 3


def test_best_is_copied_where_links_are_unknown(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    checkpoints = saved(tmp_path, 1)
    checkpoints.mark_best()
    assert read_checkpoint(checkpoints.best).state["step"] == 1
    assert not (checkpoints.best / MODEL).samefile(checkpoints.last / MODEL)


def test_remains_of_interrupted_saves_are_removed(tmp_path):
    checkpoints = saved(tmp_path, 1)
    (checkpoints.directory / ".12345678.tmp").mkdir()
    (checkpoints.directory / ".12345678.tmp" / MODEL).write_bytes(b"half")
    checkpoints.save(snapshot(2))
    assert steps_of(checkpoints) == {"last": 2, "previous": 1}


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def replace_by_another(path):
    path.write_bytes(b"PK\x03\x04 some other file")


@pytest.mark.parametrize("harm", [truncate, flip_a_bit, replace_by_another, lambda path: path.unlink()])
@pytest.mark.parametrize("name", [MODEL, EMA, STATE, MANIFEST])
def test_damage_is_named_and_the_previous_one_used(tmp_path, name, harm):
    checkpoints = saved(tmp_path, 1, 2)
    if name == MANIFEST and harm is truncate:
        harm = lambda path: path.write_text(path.read_text()[:-5])  # noqa: E731  without its last newline it is still whole
    harm(checkpoints.last / name)
    notes = []
    if name == MANIFEST and harm is flip_a_bit:
        # One letter in a name or a digit of a hash: whatever it is, the files no longer agree with it.
        with pytest.raises(DamagedCheckpointError):
            read_checkpoint(checkpoints.last)
    back = checkpoints.load(fits, notes.append)
    assert back is not None and back.state["step"] == 1
    assert len(notes) == 1 and str(checkpoints.last) in notes[0] and "going on from previous, step 1" in notes[0]
    if not (name == MANIFEST and harm is flip_a_bit):
        assert name in notes[0]


def test_foreign_files_with_a_fitting_manifest_are_not_executed(tmp_path):
    checkpoints = saved(tmp_path, 1, 2)
    shutil.rmtree(checkpoints.last)

    class Evil:
        def __reduce__(self):
            return (print, ("executed",))

    write_checkpoint(checkpoints.last, Snapshot(snapshot(2).model, None, {"step": 2, "evil": Evil()}))
    notes = []
    assert checkpoints.load(fits, notes.append).state["step"] == 1
    assert f"{checkpoints.last / STATE} cannot be read" in notes[0]


def test_a_checkpoint_of_a_later_format_is_named(tmp_path):
    checkpoints = saved(tmp_path, 1, 2)
    manifest = json.loads((checkpoints.last / MANIFEST).read_text())
    (checkpoints.last / MANIFEST).write_text(json.dumps(manifest | {"format": "dynavit checkpoint 9"}))
    notes = []
    checkpoints.load(fits, notes.append)
    assert "describes 'dynavit checkpoint 9', this version reads 'dynavit checkpoint 1'" in notes[0]


def test_a_checkpoint_that_does_not_fit_is_passed_over(tmp_path):
    def only_the_first(snapshot):
        if snapshot.state["step"] != 1:
            raise ValueError("of another model")

    checkpoints, notes = saved(tmp_path, 1, 2), []
    assert checkpoints.load(only_the_first, notes.append).state["step"] == 1
    assert "of another model" in notes[0]


def test_nothing_good_is_an_error_that_names_both(tmp_path):
    checkpoints = saved(tmp_path, 1, 2)
    truncate(checkpoints.last / MODEL)
    truncate(checkpoints.previous / STATE)
    with pytest.raises(ValueError, match=r"no checkpoint in .* can be used: .*last/model.safetensors.*previous/state.pt"):
        checkpoints.load(fits, print)


def test_nothing_at_all_is_not_an_error(tmp_path):
    assert Checkpoints(tmp_path / "none").load(fits, print) is None


def test_a_damaged_one_never_displaces_a_good_one(tmp_path):
    """After falling back, the next save rotates; the bad one must not become the previous one."""
    checkpoints = saved(tmp_path, 1, 2)
    truncate(checkpoints.last / MODEL)
    checkpoints.load(fits, lambda text: None)
    checkpoints.settle(is_best=False)
    assert steps_of(checkpoints) == {"damaged": 2, "previous": 1}
    checkpoints.save(snapshot(2))
    assert steps_of(checkpoints) == {"damaged": 2, "last": 2, "previous": 1}
    read_checkpoint(checkpoints.last)
    read_checkpoint(checkpoints.previous)


def test_settling_marks_a_best_one_that_was_not_marked(tmp_path):
    checkpoints = saved(tmp_path, 1, 2)
    checkpoints.load(fits, print)
    checkpoints.settle(is_best=True)
    assert steps_of(checkpoints) == {"best": 2, "last": 2, "previous": 1}


def test_a_checkpoint_that_moves_on_while_it_is_read_is_never_mixed(tmp_path, monkeypatch):
    """A run in training saves between the reading of two files: weights and state still are of one step."""
    from dynavit.engine import checkpoint

    checkpoints, real, saves = saved(tmp_path, 1, 2), checkpoint.torch.load, []

    def slow(*args, **options):
        state = real(*args, **options)
        if len(saves) < 3:  # the reading before this one has verified every file
            saves.append(checkpoints.save(snapshot(3 + len(saves))))
        return state

    monkeypatch.setattr(checkpoint.torch, "load", slow)
    back = read_checkpoint(checkpoints.last)
    assert len(saves) == 3
    assert back.state["step"] == 5 and torch.equal(back.model["w"], torch.full((3, 2), 5.0)) and back.model["count"] == 5


def test_a_name_that_is_between_two_checkpoints_is_waited_for(tmp_path, monkeypatch):
    from dynavit.engine import checkpoint
    from dynavit.runs.directory import RunDirectory

    checkpoints = saved(tmp_path, 1, 2)
    checkpoints.last.rename(tmp_path / "aside")
    monkeypatch.setattr(checkpoint.time, "sleep", lambda seconds: (tmp_path / "aside").rename(checkpoints.last))
    assert RunDirectory(tmp_path).checkpoint("last") == checkpoints.last
    checkpoints.last.rename(tmp_path / "aside")
    assert read_checkpoint(checkpoints.last).state["step"] == 2


def test_a_checkpoint_that_is_gone_is_an_error(tmp_path, monkeypatch):
    from dynavit.engine import checkpoint

    monkeypatch.setattr(checkpoint, "BETWEEN_RENAMES", 0)
    with pytest.raises(DamagedCheckpointError, match="replaced all the time, or gone"):
        read_checkpoint(tmp_path / "last")
