"""A process that ends with the one that started it, however that ended: kill -9 leaves nobody to stop it."""

import multiprocessing
import os
import signal
import threading


def end_with_parent(*_: object) -> None:
    """In a worker process: send itself SIGTERM as soon as its parent is gone. Arguments that starters of workers give are
    ignored.

    A process of a fork server has the server for its parent in the eyes of the system, and that stays as long as its children.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "this is not a process that was started by another"

    def wait() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
