"""A disk that is full, or a limit on the size of files: one sentence, nothing half written, and the run goes on later."""

import resource
from contextlib import contextmanager

import pytest

from cli.tiny import STEPS, TINY

pytestmark = pytest.mark.usefixtures("nothing_is_drawn_in_this_file")


@contextmanager
def files_up_to(size):
    """Writing beyond that many bytes fails, as on a full disk (Python ignores the signal that comes with it)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="module")
def sizes(tmp_path_factory):
    """Bytes of each file of a checkpoint."""
    from dynavit.cli.main import main

    out = tmp_path_factory.mktemp("sizes") / "run"
    assert main(["train", *TINY, "--ema.decay", "0.5", "--quiet", "--out", str(out)]) == 0
    return {file.name: file.stat().st_size for file in (out / "checkpoints" / "last").iterdir()}


@pytest.mark.parametrize("file", ["model.safetensors", "state.pt"])
def test_a_checkpoint_that_does_not_fit(run, tmp_path, sizes, file):
    out, words = tmp_path / "x", ("train", *TINY, "--engine.checkpoint_every", "2", "--engine.log_every", "2")
    assert sizes["model.safetensors"] < sizes["state.pt"], "so that each of them can be the one that does not fit"
    with files_up_to(sizes[file] - 1000):
        code, told, problem = run(*words, "--quiet", "--out", out)
    assert (code, told) == (2, "")
    assert problem.startswith("dynavit: ") and problem.count("\n") == 1
    assert f"{file} could not be written" in problem and "the disk may be full" in problem
    assert list((out / "checkpoints").iterdir()) == [], "the half checkpoint has gone"
    assert not list(out.rglob("*.tmp"))
    code, told, _ = run("train", "--resume", "--quiet", "--out", out)
    assert code == 0 and told.startswith(f"{out}: {STEPS} steps")


def test_a_small_file_that_does_not_fit(run, trained, tmp_path):
    """Results are told and named as not stored; the others name the file."""
    import shutil

    copy = shutil.copytree(trained, tmp_path / "copy")
    before = sorted(copy.rglob("*"))
    with files_up_to(100):
        code, told, problem = run("eval", copy, "--split", "val")
        assert code == 1 and "top-1" in told
        assert "the results are not stored ([Errno 27] File too large: " in problem and "val.json" in problem
        code, _, problem = run("report", copy)
        assert code == 2 and "File too large" in problem and "report.html" in problem
    assert sorted(copy.rglob("*")) == before


def test_a_log_that_does_not_fit(run, tmp_path):
    out, words = tmp_path / "x", ("train", *TINY, "--engine.log_every", "1", "--quiet", "--out", tmp_path / "x")
    with files_up_to(3000):
        code, _, problem = run(*words, "--engine.scalars_every", "1", "--norm", "dtn")
    assert code == 2 and problem.count("\n") == 1 and "File too large" in problem and "metrics.jsonl" in problem
    assert run("report", out)[0] == 0, "half a line at its end is no obstacle"
    assert run("train", "--resume", "--quiet", "--out", out)[0] == 0
