"""Stopping politely: finish the step, or leave the validation, write a checkpoint, then stop."""

import os
import signal
import threading
from types import FrameType

WORD = b"\ndynavit: stopping, a checkpoint is written first; Ctrl-C again stops at once\n"
STDERR = 2


class LeftUndoneError(BaseException):
    """A pass over a split ended early because it was asked to. Not an `Exception`: nothing went wrong, nothing to try again."""


class Interrupt:
    """Inside `with`, SIGINT and SIGTERM only leave a mark; `deliver` does what they would have done.

    A first SIGINT is answered with a word, a second one acts at once. Signals reach the main thread only; elsewhere this does
    nothing, and neither does it where they are ignored.
    """

    def __init__(self, *, speaks: bool = True) -> None:
        self.signal: int | None = None
        self.previous: dict[int, object] = {}
        self.speaks = speaks

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            heard = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN]
            self.previous = {number: signal.signal(number, self._mark) for number in heard}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _mark(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self.signal is not None:
                raise KeyboardInterrupt
            if self.speaks:
                os.write(STDERR, WORD)  # Python's own streams may be in the middle of a line that this interrupts
        self.signal = number

    def deliver(self) -> None:
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + (self.signal or signal.SIGTERM))
