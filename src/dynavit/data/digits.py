"""Handwritten digits, 8x8 pixels, grey: small enough to be part of the package. digits.txt says where they come from.

1,797 images of 13 writers; 360 of them, always the same, are the test split. The same people wrote both splits, so accuracies
here compare models and do not tell how well the writing of others is read.
"""

from pathlib import Path

import numpy as np
import torch

from .config import DataConfig
from .configured import configured
from .dataset import DataSet, MemorySplit
from .splits import cut_validation

TEST_IMAGES = 360
TEST_SEED = 1797  # part of the data set's definition: numbers measured with another split are not comparable


def open_digits(data_dir: Path | None, config: DataConfig) -> DataSet:
    """1,797 handwritten digits, 8x8, part of the package."""
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as arrays:
        ink, labels = arrays["images"], torch.from_numpy(arrays["labels"].astype(np.int64))
    images = torch.from_numpy((ink * (255 / 16)).round().astype(np.uint8))[:, None]
    everything = MemorySplit(images, labels)
    train, test = (everything.subset(index) for index in cut_validation(labels, TEST_IMAGES / len(labels), TEST_SEED))
    classes = [str(digit) for digit in range(10)]
    splits = {"train": train, "test": test}
    return configured(DataSet("digits", splits, classes, train.size, (0.3049,), (0.3757,), mirrored=False), config)
