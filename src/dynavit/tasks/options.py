"""Options of the tasks that come with the package. Nothing here imports torch, so that `dynavit train --help` can show them."""

from dataclasses import dataclass

from ..common.fits import AtLeastOne, Fraction, NotNegative, Positive


@dataclass
class EarlyExitOptions:
    """Options of the task early_exit.

    Attributes:
        weights: of the losses of the exits, coarse to fine; all 1 if not given.
    """

    weights: list[NotNegative] | None = None


@dataclass
class DetectionOptions:
    """Options of the task detection; the defaults are MMDetection's.

    Attributes:
        anchor_scale: side of the smallest anchors, in strides of their level: 4 for RetinaNet, 8 for Mask R-CNN if not given.
            Half of it suits images of 200 pixels.
        positive: RetinaNet's anchors that overlap a thing at least so much learn it.
        negative: those that overlap nothing so much learn background; between the two they learn nothing.
        rois: proposals of an image that Mask R-CNN learns from, at most a quarter of them things.
        proposals: of an image that Mask R-CNN looks at.
        candidates: best anchors of each level that are looked at.
        score: a detection has a higher one.
        overlap: of two detections of a class that overlap more, the better one stays.
        detections: of an image, at most.
        eval_batch: images that each process evaluates at once; 1 as in MMDetection, where padding then hardly matters.
    """

    anchor_scale: Positive | None = None
    positive: Fraction = 0.5
    negative: Fraction = 0.4
    rois: AtLeastOne = 512
    proposals: AtLeastOne = 1000
    candidates: AtLeastOne = 1000
    score: Fraction = 0.05
    overlap: Fraction = 0.5
    detections: AtLeastOne = 100
    eval_batch: AtLeastOne = 1
