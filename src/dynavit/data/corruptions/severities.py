"""Strengths of all corruptions at severities 1 to 5: the numbers of a row are the arguments of the function of that name.

`LARGE` has those of ImageNet-C (Hendrycks and Dietterich, ICLR 2019, arXiv 1903.12261), whose images were then stored as JPEG:
errors published on its files, AlexNet's too, contain that. `EXTRA` is what the `[robust]` extra makes of it: another formula
for elastic_transform, and no files. `SMALL` is for images up to 64 px, where those strengths leave nothing to see. It follows
CIFAR-10-C of the same authors, except for glass_blur, frost and pixelate, whose errors did not always grow with severity, the
last two of motion_blur, which hardly differed from the third, and elastic_transform, which is another formula there.
"""

from dataclasses import dataclass

Strengths = dict[str, tuple[tuple[float, ...], ...]]

SMALL_SIDE = 64  # the shorter side up to which an image is small
_244 = 244 / 224  # ImageNet-C counts in units of 244 px on images of 224

LARGE: Strengths = {
    "gaussian_noise": ((0.08,), (0.12,), (0.18,), (0.26,), (0.38,)),
    "shot_noise": ((60,), (25,), (12,), (5,), (3,)),
    "impulse_noise": ((0.03,), (0.06,), (0.09,), (0.17,), (0.27,)),
    "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    "zoom_blur": ((0.01, 12), (0.01, 16), (0.02, 11), (0.02, 13), (0.03, 11)),
    "snow": (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    "frost": ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    "fog": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    "brightness": ((0.1,), (0.2,), (0.3,), (0.4,), (0.5,)),
    "contrast": ((0.4,), (0.3,), (0.2,), (0.1,), (0.05,)),
    "elastic_transform": (
        (2 * _244, 0.7 * _244, 0.1 * _244),
        (2 * _244, 0.08 * _244, 0.2 * _244),
        (0.05 * _244, 0.01 * _244, 0.02 * _244),
        (0.07 * _244, 0.01 * _244, 0.02 * _244),
        (0.12 * _244, 0.01 * _244, 0.02 * _244),
    ),
    "pixelate": ((0.6,), (0.5,), (0.4,), (0.3,), (0.25,)),
    "jpeg_compression": ((25,), (18,), (15,), (10,), (7,)),
}

EXTRA: Strengths = LARGE | {
    "elastic_transform": ((0.0625, 0.01), (0.08125, 0.01), (0.10625, 0.01), (0.125, 0.01), (0.15, 0.01)),
}

SMALL: Strengths = {
    "gaussian_noise": ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),
    "shot_noise": ((500,), (250,), (100,), (75,), (50,)),
    "impulse_noise": ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.4, 1, 1), (0.4, 1, 2), (0.4, 1, 3), (0.4, 1, 4), (0.4, 1, 5)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2.5), (9, 3)),
    "zoom_blur": ((0.01, 7), (0.01, 12), (0.01, 16), (0.01, 21), (0.01, 26)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1.0, 0.15), (0.97, 0.22), (0.93, 0.3), (0.89, 0.38), (0.85, 0.47)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),
    "contrast": ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),
    "elastic_transform": ((0.06, 0.04), (0.09, 0.04), (0.12, 0.04), (0.15, 0.04), (0.18, 0.04)),
    "pixelate": ((0.95,), (0.9,), (0.82,), (0.72,), (0.6,)),
    "jpeg_compression": ((80,), (65,), (58,), (50,), (40,)),
}


@dataclass(frozen=True)
class Table:
    """Strengths, and the quality of the JPEG that a corrupted image is stored as and read from; None leaves it as it is."""

    strengths: Strengths
    jpeg: int | None = None


TABLES = {"small": Table(SMALL), "large": Table(LARGE, jpeg=85), "extra": Table(EXTRA)}
