"""One writer at a time, told by name, and never longer than its process lives."""

import os
import signal
import threading

import pytest

from dynavit.common.lock import LOCK, BusyError, only_writer

# Other tests may have started threads; the forks here do nothing that could wait for one of them.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def in_child(work):
    """The exit code of a forked process, -9 if it was killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = work() or 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def refused(directory):
    try:
        with only_writer(directory):
            return 0
    except BusyError:
        return 3


def test_another_process_is_refused_and_told_who_writes(tmp_path):
    ready, tell = os.pipe()
    stay, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        with only_writer(tmp_path):
            os.write(tell, b"x")
            os.read(stay, 1)  # until the parent closes its end
        os._exit(0)
    os.close(stay)
    os.read(ready, 1)
    with (
        pytest.raises(BusyError, match=rf"{tmp_path} is being written by process {child} on \S+ since 2\d+-.*; wait"),
        only_writer(tmp_path),
    ):
        pass
    os.close(end)
    os.waitpid(child, 0)
    with only_writer(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_death_releases_it(tmp_path):
    def die():
        with only_writer(tmp_path):
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(die) == -signal.SIGKILL
    assert (tmp_path / LOCK).exists()
    with only_writer(tmp_path):
        pass
    assert not (tmp_path / LOCK).exists()


def test_a_forked_process_neither_holds_nor_keeps_it(tmp_path):
    """Reading processes of a data loader may live on after the training was killed."""
    stay, end = os.pipe()

    def die_with_a_child():
        with only_writer(tmp_path):
            if os.fork() == 0:
                os.close(end)
                os.read(stay, 1)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(die_with_a_child) == -signal.SIGKILL
    with only_writer(tmp_path):  # although the grandchild still lives
        assert in_child(lambda: refused(tmp_path)) == 3
    os.close(end)
    os.close(stay)


def test_a_verb_may_call_another_and_a_thread_may_not(tmp_path):
    found = []
    with only_writer(tmp_path):
        with only_writer(tmp_path):
            assert (tmp_path / LOCK).exists()
        assert in_child(lambda: refused(tmp_path)) == 3, "the inner block has not released it"
        thread = threading.Thread(target=lambda: found.append(refused(tmp_path)))
        thread.start()
        thread.join()
    assert found == [3]


def test_a_link_is_the_same_directory(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with only_writer(tmp_path / "run"):
        assert in_child(lambda: refused(tmp_path / "link")) == 3


def test_a_lock_that_was_removed_while_one_waited_is_not_taken_for_the_new_one(tmp_path, monkeypatch):
    """Opened by us, then unlinked by its holder, then made anew by a third: two would think they write alone."""
    from dynavit.common import lock

    real, opened = lock._lock, []

    def late(descriptor, directory):
        opened.append(descriptor)
        if len(opened) == 1:
            (tmp_path / LOCK).unlink()
            (tmp_path / LOCK).touch()
        real(descriptor, directory)

    monkeypatch.setattr(lock, "_lock", late)
    with only_writer(tmp_path):
        assert len(opened) == 2
        monkeypatch.setattr(lock, "_lock", real)
        assert in_child(lambda: refused(tmp_path)) == 3


def test_a_file_system_without_locks_is_mentioned(tmp_path, monkeypatch):
    import fcntl

    def unknown(descriptor, how):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unknown)
    with (
        pytest.warns(UserWarning, match="cannot be locked .No locks available.; write to it with one process"),
        only_writer(tmp_path),
    ):
        pass
