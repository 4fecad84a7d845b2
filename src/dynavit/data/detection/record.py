"""One image with everything that is annotated in it, as its file says it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .rle import Mask
from .segments import Segment, mask_of

SMALLEST = 1.0  # pixels of a box's side that can be learned


def _none(*shape: int) -> NDArray[np.float64]:
    return np.zeros(shape)


@dataclass(frozen=True)
class Record:
    """An image and its n annotations. Boxes and areas are raw; what is learned of them is said by `usable`.

    Attributes:
        id: of the image in its file.
        file: path of the image; for made-up ones a name.
        name: of the image in its annotation file, relative to the folder of images.
        boxes: (n, 4) x, y, width, height in pixels of the stored image.
        labels: (n,) numbers of classes.
        areas: (n,) as the evaluator sorts objects into small, medium and large.
        crowd: (n,) whether it is a group that was not told apart.
        segments: n masks, or none of all where masks were not wanted.
    """

    id: int
    file: str
    name: str
    height: int
    width: int
    boxes: NDArray[np.float64] = field(default_factory=lambda: _none(0, 4))
    labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    areas: NDArray[np.float64] = field(default_factory=lambda: _none(0))
    crowd: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    segments: Sequence[Segment] = ()

    @property
    def corners(self) -> NDArray[np.float64]:
        """(n, 4) x1, y1, x2, y2, cut off at the image's border."""
        corners = np.concatenate([self.boxes[:, :2], self.boxes[:, :2] + self.boxes[:, 2:]], 1)
        return corners.clip(0, [self.width, self.height, self.width, self.height])

    @property
    def usable(self) -> NDArray[np.bool_]:
        """(n,) what can be learned: no crowd, with an area, and with some of its box inside the image."""
        corners = self.corners
        inside = (corners[:, 2] > corners[:, 0]) & (corners[:, 3] > corners[:, 1])
        return ~self.crowd & inside & (self.areas > 0) & (self.boxes[:, 2:] >= SMALLEST).all(1)

    def learnable(self, masks: bool) -> NDArray[np.bool_]:
        """(n,) what is learned; where masks are, only what has one."""
        return self.usable & self.masked if masks else self.usable

    @property
    def masked(self) -> NDArray[np.bool_]:
        """(n,) which have a mask."""
        return np.array([segment is not None for segment in self.segments], bool)

    def masks(self, chosen: NDArray[np.bool_]) -> list[Mask]:
        """Masks (height, width) of the chosen ones of the n."""
        return [mask_of(self.segments[place], self.height, self.width) for place in np.flatnonzero(chosen).tolist()]

    def without_masks(self) -> "Record":
        return replace(self, segments=())
