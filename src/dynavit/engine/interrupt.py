"""Stopping politely: finish the step, write a checkpoint, then stop."""

import signal
import threading
from types import FrameType


class Interrupt:
    """Inside `with`, SIGINT and SIGTERM only leave a mark; `deliver` does what they would have done.

    A second SIGINT acts at once. Signals reach the main thread only; elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.previous: dict[int, object] = {}

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            self.previous = {number: signal.signal(number, self._mark) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _mark(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number

    def deliver(self) -> None:
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + (self.signal or signal.SIGTERM))
