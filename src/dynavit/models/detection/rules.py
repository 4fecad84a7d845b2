"""How many boxes a detector considers and keeps, and what counts as the same box."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """MMDetection's numbers.

    Attributes:
        score: a detection has a higher one.
        overlap: of two detections of a class that overlap more, the better one stays.
        most: detections of an image.
        candidates: of each level, by score, that are looked at.
        proposals: of an image, from a region proposal network.
        proposal_overlap: of two proposals of a level that overlap more, the better one stays.
    """

    score: float = 0.05
    overlap: float = 0.5
    most: int = 100
    candidates: int = 1000
    proposals: int = 1000
    proposal_overlap: float = 0.7
