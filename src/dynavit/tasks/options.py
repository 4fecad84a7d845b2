"""Options of the tasks that come with the package. Nothing here imports torch, so that `dynavit train --help` can show them."""

from dataclasses import dataclass
from typing import Annotated, Literal

from ..common.fits import AtLeastOne, Count, Fraction, NotNegative, Pixels, Positive, Range


@dataclass
class EarlyExitOptions:
    """Options of the task early_exit.

    Attributes:
        weights: of the losses of the exits, coarse to fine; all 1 if not given.
    """

    weights: list[NotNegative] | None = None


@dataclass
class DistilledExitsOptions(EarlyExitOptions):
    """Options of the task distilled_exits.

    Attributes:
        weights: of the losses of the exits, coarse to fine; all 1 if not given.
        share: of the loss of an earlier exit that is its distance to the last exit's answer; the rest is that to the labels.
        temperature: of both softmaxes in that distance; a higher one shows more of what else an image could be.
    """

    share: Fraction = 0.5
    temperature: Positive = 2.0


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


@dataclass
class DinoOptions:
    """Options of the task dino; the defaults are DINO's for ImageNet.

    Attributes:
        local_crops: small views of each image, beside the two large ones.
        local_size: side of the small views in pixels; half of the image's if not given.
        global_scale: part of the area that a large view shows, from and to; 0.4,1 if not given, without small views 0.14,1.
        local_scale: part of the area that a small view shows.
        colours: factor on how much and how often the views' colours change; less for images that have little else.
        prototypes: outputs of the head; not many more than there are images.
        hidden: width of the head.
        bottleneck: its width before the prototypes.
        train_length: train the length of each prototype too, which is better where it is stable.
        student_temperature: of the student's softmax.
        teacher_temperature: of the teacher's softmax, after the warm-up.
        warmup_temperature: where it begins; teacher_temperature if not given.
        warmup_temperature_epochs: length of the way there.
        momentum: the teacher's share of itself at the first step; it ends at 1. 0.99 for a few thousand steps.
        targets: centre subtracts a running mean from the teacher's outputs; sinkhorn shares prototypes out in each batch.
        centre_momentum: the centre's share of itself in a step; 1 keeps it at 0.
        freeze_epochs: prototypes stay as they are for so long.
        on_collapse: warn and go on, or stop with a checkpoint and exit code 3.
        bank: training images that validation looks for neighbours among; 0 takes all.
        neighbours: that vote in a validation.
    """

    local_crops: Count = 8
    local_size: Pixels | None = None
    global_scale: list[Fraction] | None = None
    local_scale: tuple[Fraction, Fraction] = (0.05, 0.4)
    colours: Fraction = 1.0
    prototypes: Annotated[int, Range(least=2)] = 65536
    hidden: AtLeastOne = 2048
    bottleneck: AtLeastOne = 256
    train_length: bool = False
    student_temperature: Positive = 0.1
    teacher_temperature: Positive = 0.04
    warmup_temperature: Positive | None = None
    warmup_temperature_epochs: NotNegative = 0.0
    momentum: Fraction = 0.996
    targets: Literal["centre", "sinkhorn"] = "centre"
    centre_momentum: Fraction = 0.9
    freeze_epochs: NotNegative = 1.0
    on_collapse: Literal["warn", "stop"] = "warn"
    bank: Count = 1000
    neighbours: AtLeastOne = 20
