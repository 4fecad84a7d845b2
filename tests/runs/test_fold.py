"""What the statistics of norms are recomputed from before folding."""

from dataclasses import replace

import torch

from dynavit.data.config import AugmentConfig
from dynavit.runs.fold import BATCH, training_images
from dynavit.runs.subject import Subject
from runs.made_up_runs import random_run


def rows(images):
    """Each image as its bytes."""
    return sorted(image.numpy().tobytes() for image in images)


def seen(opened, **augment):
    config = replace(opened.config, augment=AugmentConfig(**augment))
    return list(training_images(replace(opened, config=config)))


def test_images_are_varied_as_in_training_but_not_mixed(tmp_path):
    opened = Subject(run=random_run(tmp_path / "run")).open()
    plain = torch.cat([batch.inputs[: batch.count] for (batch,) in opened.loader("train", 500).epoch()])
    without = seen(opened, recipe="none", mixup=0.8, cutmix=1.0)
    assert len(without[0]) == BATCH and sum(map(len, without)) >= len(plain)
    assert set(rows(torch.cat(without))) <= set(rows(plain))  # neither shifted nor mixed
    shifted = torch.cat(seen(opened, recipe="light"))
    assert len(set(rows(shifted)) & set(rows(plain))) < 0.3 * len(shifted)  # some are shifted by nothing
