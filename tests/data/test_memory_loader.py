"""Batches of data in memory: which samples, augmented how."""

import itertools
from dataclasses import replace

import pytest
import torch

from dynavit.common.data import LoaderOptions
from dynavit.data.config import AugmentConfig
from dynavit.data.dataset import DataSet, MemorySplit
from dynavit.data.memory_loader import MemoryLoader
from dynavit.data.mixing import Mixer
from dynavit.data.sampling import epoch_draws, uniform

SAMPLES, SIDE = 23, 8
SPLIT = MemorySplit(
    torch.randint(0, 256, (SAMPLES, 3, SIDE, SIDE), generator=torch.Generator().manual_seed(0), dtype=torch.uint8),
    torch.arange(SAMPLES) % 4,
)
DATA = DataSet("x", {"train": SPLIT}, list("abcd"), (SIDE, SIDE), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


def loader(data=DATA, **options):
    defaults = {"train": True, "batch_size": 8, "seed": 3, "augment": AugmentConfig(), "config": None, "dtype": torch.float64}
    return MemoryLoader(SPLIT, data, LoaderOptions(**(defaults | options)))


def batches(loader, epoch=0, start=0):
    """All micro-batches in the order they come."""
    return list(itertools.chain.from_iterable(loader.epoch(epoch, start)))


def plainly(draw, epoch, *, side=SIDE, reach=1, flip=True, erase=0.0):
    """One augmented image, written for one image at a time."""
    numbers = uniform(3, epoch, torch.tensor([draw]), 8)[0].tolist()
    down, right = (int(u * (2 * reach + 1)) - reach for u in numbers[:2])
    source, margin = SPLIT.images[draw % SAMPLES], (side - SIDE) // 2
    image = torch.zeros(3, side, side, dtype=torch.float64)
    for row, col in itertools.product(range(side), range(side)):
        y, x = row - margin - down, col - margin - right
        if 0 <= y < SIDE and 0 <= x < SIDE:
            image[:, row, col] = source[:, y, SIDE - 1 - x if flip and numbers[2] < 0.5 else x].double() / 255
    image = (image - torch.tensor(DATA.mean)[:, None, None]) / torch.tensor(DATA.std)[:, None, None]
    if numbers[3] < erase:
        area, slope = (0.02 + (1 / 3 - 0.02) * numbers[4]) * side**2, 0.3 ** (1 - 2 * numbers[5])
        height, width = (min(max(round((area * f) ** 0.5), 1), side) for f in (slope, 1 / slope))
        top, left = int(numbers[6] * (side - height + 1)), int(numbers[7] * (side - width + 1))
        image[:, top : top + height, left : left + width] = 0
    return image


@pytest.mark.parametrize(
    ("augment", "side", "expected"),
    [
        (AugmentConfig(), SIDE, {}),
        (AugmentConfig(recipe="light", padding=0.25), SIDE, {"reach": 2}),
        (AugmentConfig(flip=False), SIDE, {"flip": False}),
        (AugmentConfig(erase=0.6), SIDE, {"erase": 0.6}),
        (AugmentConfig(), 10, {"side": 10}),
        (AugmentConfig(recipe="none"), SIDE, {"reach": 0, "flip": False}),
        (AugmentConfig(recipe="none", erase=1.0), SIDE, {"reach": 0, "flip": False, "erase": 1.0}),
    ],
)
def test_augmentation_is_that_of_each_sample_alone(augment, side, expected):
    for epoch in (0, 5):
        made = torch.cat(
            [batch.inputs for batch in batches(loader(replace(DATA, image_size=(side, side)), augment=augment), epoch)]
        )
        draws = epoch_draws(SAMPLES, 3, epoch).tolist()
        wanted = torch.stack([plainly(draw, epoch, **expected) for draw in draws])
        assert (made - wanted).abs().max() < 1e-6  # mean and std above are float32


def test_augmentation_changes_with_epoch_and_seed():
    def images(epoch, seed):
        made = batches(loader(batch_size=SAMPLES, seed=seed), epoch)[0]
        return made.inputs[made.index.argsort()]

    assert torch.equal(images(0, 3), images(0, 3))
    assert not torch.equal(images(0, 3), images(1, 3))
    assert not torch.equal(images(0, 3), images(0, 4))


def test_a_set_that_is_not_mirrored_stays_so():
    unmirrored = replace(DATA, mirrored=False)
    default = torch.cat([batch.inputs for batch in batches(loader(unmirrored))])
    assert torch.equal(default, torch.cat([batch.inputs for batch in batches(loader(augment=AugmentConfig(flip=False)))]))
    asked = torch.cat([batch.inputs for batch in batches(loader(unmirrored, augment=AugmentConfig(flip=True)))])
    assert torch.equal(asked, torch.cat([batch.inputs for batch in batches(loader())]))


def test_larger_growth_is_interpolated_after_the_moves():
    small = batches(loader())[0].inputs
    large = batches(loader(replace(DATA, image_size=(24, 24))))[0].inputs
    expected = torch.nn.functional.interpolate(small, (24, 24), mode="bilinear")
    assert (large - expected).abs().max() < 1e-12


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(("world", "accumulate"), [(2, 1), (1, 3), (2, 3), (3, 4)])
def test_parts_of_all_processes_make_up_the_single_process_batch(train, world, accumulate):
    augment = AugmentConfig(erase=0.5)
    single = loader(train=train, augment=augment)
    ranks = [loader(train=train, augment=augment, rank=rank, world=world, accumulate=accumulate) for rank in range(world)]
    assert all((rank.steps, rank.samples) == (single.steps, single.samples) == (3, SAMPLES) for rank in ranks)
    for (whole,), *steps in zip(single.epoch(1), *(rank.epoch(1) for rank in ranks), strict=True):
        parts = [part for micro_batch in zip(*steps, strict=True) for part in micro_batch]
        assert len(parts) == world * accumulate
        for field in ("inputs", "targets", "index"):
            joined = torch.cat([getattr(part, field)[: part.count] for part in parts])
            assert torch.equal(joined, getattr(whole, field)), field
        assert {part.step_count for part in parts} == {whole.count}
        assert all(len(part.inputs) == len(part.targets) == max(part.count, 1) for part in parts)


def test_the_last_batch_may_be_smaller_than_the_number_of_processes():
    counts = [batches(loader(batch_size=11, rank=rank, world=4))[-1].count for rank in range(4)]
    assert counts == [1, 0, 0, 0]


def test_an_epoch_is_every_sample_once():
    for train in (True, False):
        seen = torch.cat([batch.index for batch in batches(loader(train=train))])
        assert sorted(seen.tolist()) == list(range(SAMPLES))
    assert seen.tolist() == list(range(SAMPLES))  # evaluation: in order


def test_targets_belong_to_the_samples():
    for batch in batches(loader()):
        assert torch.equal(batch.targets, SPLIT.labels[batch.index])


def test_evaluation_only_normalises():
    augment = AugmentConfig(erase=1.0, mixup=1.0, label_smoothing=0.1, repeats=3, recipe="deit")
    made = torch.cat([batch.inputs for batch in batches(loader(train=False, augment=augment))])
    mean, std = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (DATA.mean, DATA.std))
    assert (made - (SPLIT.images.double() / 255 - mean) / std).abs().max() < 1e-13


def test_a_later_start_gives_the_same_rest():
    whole, rest = batches(loader(), 2), batches(loader(), 2, start=1)
    assert len(whole) == 3 and len(rest) == 2
    for one, other in zip(whole[1:], rest, strict=True):
        assert torch.equal(one.inputs, other.inputs) and torch.equal(one.index, other.index)


def test_repeated_samples_are_augmented_differently():
    made = batches(loader(batch_size=SAMPLES, augment=AugmentConfig(repeats=3, padding=0.25, erase=1.0)))[0]
    assert len(made.index) == SAMPLES and len(made.index.unique()) == 8
    first, second = made.inputs[0], made.inputs[1]
    assert made.index[0] == made.index[1] and not torch.equal(first, second)
    draws = epoch_draws(SAMPLES, 3, 0, repeats=3).tolist()
    for image, draw in zip(made.inputs, draws, strict=True):
        assert (image - plainly(draw, 0, reach=2, erase=1.0)).abs().max() < 1e-6


def test_batches_are_mixed_by_the_mixer_with_the_number_of_the_part():
    augment = AugmentConfig(mixup=0.8, cutmix=1.0, label_smoothing=0.1)
    mixer = Mixer(4, augment, 3)
    for rank in range(2):
        mixed = list(loader(augment=augment, rank=rank, world=2, accumulate=2).epoch(1))
        plain = list(loader(rank=rank, world=2, accumulate=2).epoch(1))
        for step, (ours, unmixed) in enumerate(zip(mixed, plain, strict=True)):
            for number, (one, other) in enumerate(zip(ours, unmixed, strict=True)):
                expected = mixer(other, 1, step, 2 * number + rank)
                assert torch.equal(one.inputs, expected.inputs) and torch.equal(one.targets, expected.targets)
                assert one.targets.shape == (len(one.inputs), 4)


def test_the_type_of_inputs():
    assert batches(loader(dtype=torch.float32))[0].inputs.dtype == torch.float32
    assert batches(loader())[0].inputs.dtype == torch.float64


def test_the_recipe_for_files_is_refused():
    with pytest.raises(ValueError, match="deit is for image files, x lives in memory; use light"):
        loader(augment=AugmentConfig(recipe="deit"))
