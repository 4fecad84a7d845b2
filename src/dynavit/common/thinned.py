"""A few of many items, evenly over all of them, without knowing how many come: a log of a million lines makes one curve."""

from typing import Generic, TypeVar

T = TypeVar("T")

MOST = 2000  # points of a curve; a page is not as wide in pixels


class Thinned(Generic[T]):
    """Every `stride`-th item, which doubles whenever there are too many, and the last one.

    >>> few = Thinned(most=4)
    >>> for number in range(10):
    ...     few.add(number)
    >>> few.items()
    [0, 4, 8, 9]
    """

    def __init__(self, most: int = MOST) -> None:
        self.most, self.stride, self.count = most, 1, 0
        self.kept: list[T] = []
        self.last: T | None = None

    def add(self, item: T) -> None:
        self.last = item
        if self.count % self.stride == 0:
            self.kept.append(item)
            if len(self.kept) > self.most:
                self.kept = self.kept[::2]
                self.stride *= 2
        self.count += 1

    def items(self) -> list[T]:
        """In their order."""
        if not self.count or (self.count - 1) % self.stride == 0:
            return list(self.kept)
        return [*self.kept, self.last]  # type: ignore[list-item]
