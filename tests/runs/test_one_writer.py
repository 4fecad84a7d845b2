"""A directory that another process writes to: nothing is mixed up, and everybody is told who it is."""

import json
import os
import shutil
from contextlib import ExitStack, contextmanager

import pytest

from cli.tiny import TINY
from dynavit import TrainConfig, train_run
from dynavit.cli.main import main
from dynavit.common.lock import LOCK, BusyError, only_writer
from dynavit.engine.progress import Progress
from dynavit.runs.config import stored_config
from dynavit.runs.directory import RunDirectory

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    pytest.mark.usefixtures("nothing_is_drawn_in_this_file"),
]

SMALL = {"epochs": 0.2, "model_options": {"depth": 1, "norm_blocks": 1}}


@contextmanager
def another_writer(directory):
    """A process that holds the lock."""
    ready, tell = os.pipe()
    stay, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        with only_writer(directory):
            os.write(tell, b"x")
            os.read(stay, 1)
        os._exit(0)
    os.read(ready, 1)
    try:
        yield child
    finally:
        for descriptor in (ready, tell, stay, end):
            os.close(descriptor)
        os.waitpid(child, 0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "ldfn"
    train_run(TrainConfig(norm="ldfn", **SMALL), out)
    return out


@pytest.fixture
def copy(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "copy")


def content(directory):
    return {file: file.read_bytes() for file in sorted(directory.rglob("*")) if file.is_file() and file.name != LOCK}


def test_every_verb_that_writes_is_refused(copy, tmp_path, capsys):
    from dynavit.runs.fold import fold_run

    fold_run(copy, tmp_path / "folded")
    verbs = {
        copy: [
            ["train", *TINY, "--norm", "ldfn", "--resume", "--out", str(copy)],
            ["train", *TINY, "--overwrite", "--out", str(copy)],
            ["report", str(copy)],
            ["analyze", str(copy), "--images", "4", "--shown", "1"],
            ["robust", str(copy), "--limit", "4", "--severities", "1", "--corruptions", "fog"],
            ["calibrate", str(copy), "--gmacs", "1"],
        ],
        tmp_path / "folded": [["fold", str(copy), "--overwrite", "--out", str(tmp_path / "folded")]],
    }
    for directory, calls in verbs.items():
        with another_writer(directory) as writer:
            before = content(directory)
            for words in calls:
                capsys.readouterr()
                assert main(words) == 2, words
                assert f"is being written by process {writer} on " in capsys.readouterr().err, words
                assert content(directory) == before, words


def test_an_evaluation_beside_a_training_is_told_and_not_stored(copy, capsys):
    with another_writer(copy) as writer:
        before = content(copy)
        assert main(["eval", str(copy), "--split", "val"]) == 1
        assert content(copy) == before
    told, problem = capsys.readouterr()
    assert "val of digits, 144 images" in told and "top-1" in told
    assert f"the results are not stored: {copy} is being written by process {writer}" in problem


def test_an_evaluation_of_a_read_only_run_is_told_and_not_stored(copy, capsys, monkeypatch):
    def read_only(lock, directory):
        raise OSError(30, "Read-only file system", str(lock))

    monkeypatch.setattr("dynavit.common.lock._taken", read_only)
    before = content(copy)
    assert main(["eval", str(copy), "--split", "val", "--json"]) == 1
    told, problem = capsys.readouterr()
    found = json.loads(told)
    assert found["samples"] == 144 and found["file"] is None and "Read-only file system" in found["not_stored"]
    assert f"dynavit: {copy}: the results are not stored ([Errno 30] Read-only file system" in problem
    assert content(copy) == before


def test_a_page_beside_a_training_goes_elsewhere(copy, tmp_path, capsys):
    with another_writer(copy):
        before = content(copy)
        assert main(["report", str(copy), "--out", str(tmp_path / "page.html")]) == 0
        assert content(copy) == before
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert "page.html" in capsys.readouterr().out


def test_a_comparison_is_refused_and_its_runs_do_not_lock_each_other_out(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("dynavit.runs.compare._measure", lambda *grid: {})
    out = tmp_path / "grid"
    words = ["compare", *TINY, "--norms", "ln,rms", "--seeds", "0", "--out", str(out)]
    out.mkdir()
    with another_writer(out):
        assert main(words) == 2
        assert list(out.iterdir()) == [out / LOCK]
    assert main(words) == 0
    capsys.readouterr()
    with another_writer(out / "ln-seed0"):  # somebody evaluates one of them
        assert main([*words, "--overwrite"]) == 2
        assert "ln-seed0 is being written by" in capsys.readouterr().err
        assert (out / "comparison.json").is_file() and (out / "ln-seed0" / "config.yaml").is_file()


def test_a_comparison_waits_for_what_a_killed_one_still_writes(tmp_path, monkeypatch):
    from dynavit.runs import compare

    monkeypatch.setattr(compare.time, "sleep", lambda seconds: writer.close())
    with ExitStack() as writer:
        (tmp_path / "run").mkdir()
        writer.enter_context(another_writer(tmp_path / "run"))
        assert compare._train_one("run", TrainConfig(**SMALL), tmp_path / "run", lambda *news: None) is None
    monkeypatch.setattr(compare, "LAST_CHECKPOINT", -1.0)
    with another_writer(tmp_path / "run"):
        problem = compare._train_one("run", TrainConfig(**SMALL), tmp_path / "run", lambda *news: None)
    assert "is being written by process" in problem


def test_training_holds_the_lock_to_its_end_also_after_overwriting(copy):
    """--overwrite deletes the old run, but not the lock it holds."""

    class Look(Progress):
        seen = 0

        def step(self, done):
            with pytest.raises(BusyError), another_thread(copy):
                pass
            Look.seen += 1

    train_run(TrainConfig(**SMALL), copy, overwrite=True, progress=Look())
    assert Look.seen == 4
    assert not (copy / LOCK).exists()
    assert stored_config(RunDirectory(copy)).norm is None


@contextmanager
def another_thread(directory):
    import threading

    found = []

    def attempt():
        try:
            with only_writer(directory):
                pass
        except BusyError as error:
            found.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    if found:
        raise found[0]
    yield


def test_a_killed_training_does_not_block_the_next(copy):
    (copy / LOCK).write_text('{"host": "gone", "pid": 1, "since": "long ago"}')
    assert train_run(stored_config(RunDirectory(copy)), copy, resume=True).nothing_to_do
    assert not (copy / LOCK).exists()
