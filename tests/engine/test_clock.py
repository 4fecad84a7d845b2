"""Time that a run took: never by a clock that somebody may set."""

import time

from dynavit.engine.clock import Clock


def test_a_clock_that_is_set_back_changes_no_duration(monkeypatch):
    hours = iter(range(1000, 0, -1))
    monkeypatch.setattr(time, "time", lambda: 3600.0 * next(hours))
    clock = Clock(seconds=5.0, training_seconds=3.0, lap_began=2.0)
    laps = [clock.lap(8) for _ in range(3)]
    with clock.paused():
        laps.append(clock.lap(8))
    later = Clock(**clock.state())
    laps.append(later.lap(8))
    for name in ("seconds", "training_seconds"):
        values = [lap[name] for lap in laps]
        assert values == sorted(values) and values[0] >= 3 and values[-1] < 60, name
