"""The timer's own arithmetic, with calls that only pretend to take time."""

import torch

from dynavit.bench.timing import Timing, time_interleaved


def test_contestants_take_turns():
    """One untimed and `inner` timed calls per turn, every contestant in every round."""
    seen = []
    time_interleaved({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, repeats=2, inner=2, warmup=1)
    assert "".join(seen) == "ab" + 2 * ("aaa" + "bbb")


def test_the_clock_waits_for_the_device(monkeypatch):
    """A GPU's calls return before their work is done: it is waited for before the clock starts and before it stops."""
    seen = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: seen.append("|"))
    time_interleaved({"a": lambda: seen.append("a")}, repeats=2, inner=2, warmup=1, device=torch.device("cuda"))
    assert "".join(seen) == "a" + 2 * "a|aa|"


def test_any_clock_will_do():
    """One that moves by 4 at every look: 2 per call of two."""
    looks = iter(range(0, 1000, 4))
    found = time_interleaved({"a": lambda: None}, repeats=3, inner=2, clock=lambda: next(looks))
    assert found["a"].rounds == [2.0, 2.0, 2.0]


def test_ratio_is_the_median_of_rounds():
    """A round in which the whole machine was slow does not count double."""
    slow_third_round = Timing([2.0, 4.0, 60.0]), Timing([1.0, 2.0, 10.0])
    middle, low, high = slow_third_round[0].ratio(slow_third_round[1])
    assert (middle, low, high) == (2.0, 2.0, 4.0)
    assert slow_third_round[0].median == 4.0


def test_one_round_has_no_spread():
    assert Timing([3.0]).ratio(Timing([2.0])) == (1.5, 1.5, 1.5)
