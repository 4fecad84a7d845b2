"""Jobs in several processes: all are done, and whatever ends them early ends them all."""

import os

import pytest

from dynavit.engine.worker_pool import run_jobs
from engine import pool_jobs

pytestmark = pytest.mark.slow


def test_all_jobs_are_done(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 6)
    heard, finished = [], []
    jobs = {name: (tmp_path / name,) for name in "abc"}
    run_jobs(pool_jobs.write, jobs, 2, heard=heard.append, finished=lambda name, result: finished.append((name, result)))
    assert sorted(heard) == [("a", 3), ("b", 3), ("c", 3)], "two processes share six threads"
    assert sorted(finished) == [("a", "done a"), ("b", "done b"), ("c", "done c")]
    assert {int((tmp_path / name).read_text()) for name in "abc"}.isdisjoint({os.getpid()})


def test_an_error_comes_back_as_it_was(tmp_path):
    with pytest.raises(ValueError, match="cannot write a"):
        run_jobs(pool_jobs.fail, {"a": (tmp_path / "a",)}, 2, heard=print, finished=print)


def test_a_death_is_told(tmp_path):
    with pytest.raises(ValueError, match="a process died, probably out of memory.*fewer --processes.*if __name__ =="):
        run_jobs(pool_jobs.die, {"a": (tmp_path / "a",)}, 2, heard=print, finished=print)


def test_an_interruption_ends_the_workers(tmp_path, monkeypatch):
    """Otherwise this waits for a job of ten minutes."""
    from dynavit.engine import worker_pool

    real = worker_pool.wait

    def interrupted(*args, **options):
        if (tmp_path / "a").is_file():
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(worker_pool, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_jobs(pool_jobs.sleep, {"a": (tmp_path / "a",)}, 1, heard=print, finished=print)
