"""Batches from files: the same samples, augmented alike, whoever reads them; broken images; workers that come and go."""

import gc
import multiprocessing
import random
import re
import signal
from multiprocessing import forkserver
from pathlib import Path

import numpy as np
import pytest
import torch

from data.image_files import one_colour, write_folder
from dynavit.common.data import LoaderOptions
from dynavit.data.config import AugmentConfig, DataConfig
from dynavit.data.dataset import DataSet, MapSplit
from dynavit.data.file_loader import FileLoader
from dynavit.data.folder import open_folder
from dynavit.data.mixing import Mixer
from dynavit.data.read_image import read_image
from dynavit.data.sampling import epoch_draws, step_parts
from dynavit.data.transforms import eval_transform

SIZE = 16
SAMPLES = 23  # 7 + 7 + 7 + 2 in batches of 7


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> DataSet:
    root = write_folder(tmp_path_factory.mktemp("set"), {"train": {"a": 11, "b": 12}})
    return open_folder(root, DataConfig(image_size=SIZE, val_fraction=0))


def loader(data: DataSet, train=True, batch_size=7, seed=0, augment=None, workers=0, strict=False, split=None, **options):
    augment = augment or AugmentConfig(recipe="deit", erase=0.5)
    config = DataConfig(workers=workers, strict=strict)
    split = split or data.splits["train"]
    how = LoaderOptions(train=train, batch_size=batch_size, seed=seed, augment=augment, config=config, **options)
    return FileLoader(split, data, how)


def images_by_sample(steps) -> dict[int, torch.Tensor]:
    """Sample number -> its image, over counting samples."""
    found = {}
    for batches in steps:
        for batch in batches:
            for i in range(batch.count):
                assert int(batch.index[i]) not in found
                found[int(batch.index[i])] = batch.inputs[i]
    return found


def assert_same_images(a: dict[int, torch.Tensor], b: dict[int, torch.Tensor]) -> None:
    assert a.keys() == b.keys() and all(torch.equal(a[i], b[i]) for i in a)


def assert_same_steps(a, b) -> None:
    a, b = list(a), list(b)
    assert len(a) == len(b) > 0
    for mine, yours in zip(a, b, strict=True):
        for one, other in zip(mine, yours, strict=True):
            assert torch.equal(one.inputs, other.inputs) and torch.equal(one.targets, other.targets)
            assert torch.equal(one.index, other.index) and one.broken == other.broken
            assert (one.count, one.step_count) == (other.count, other.step_count)


def test_evaluation_gives_every_sample_once_and_in_order(data):
    files = loader(data, train=False)
    steps = list(files.epoch())
    assert (files.steps, files.samples) == (4, SAMPLES) == (len(steps), SAMPLES)
    assert torch.cat([batch.index for (batch,) in steps]).tolist() == list(range(SAMPLES))
    assert [(batch.count, batch.step_count) for (batch,) in steps] == [(7, 7), (7, 7), (7, 7), (2, 2)]
    transform = eval_transform((SIZE, SIZE), data.mean, data.std)
    for i, picture in images_by_sample(steps).items():
        assert torch.equal(picture, transform(read_image(data.splits["train"].paths[i])))
    assert torch.equal(torch.cat([batch.targets for (batch,) in steps]), data.splits["train"].labels)


def test_training_follows_the_draws_of_the_epoch(data):
    files = loader(data, seed=3)
    for epoch in (0, 1):
        index = torch.cat([batch.index for (batch,) in files.epoch(epoch)])
        assert torch.equal(index, epoch_draws(SAMPLES, 3, epoch))
        assert torch.equal(torch.cat([b.targets for (b,) in files.epoch(epoch)]), data.splits["train"].labels[index])


def test_augmentation_depends_on_seed_epoch_and_draw(data):
    plain = images_by_sample(loader(data).epoch(1))
    assert_same_images(plain, images_by_sample(loader(data, batch_size=5).epoch(1)))
    for other in (loader(data).epoch(2), loader(data, seed=1).epoch(1)):
        others = images_by_sample(other)
        assert all(not torch.equal(plain[i], others[i]) for i in plain)


def test_visits_to_a_sample_in_one_epoch_are_augmented_differently(data):
    files = loader(data, augment=AugmentConfig(recipe="deit", repeats=3), batch_size=SAMPLES)
    ((batch,),) = files.epoch()
    assert sorted(batch.index.bincount().tolist())[-7:] == [3] * 7
    first = batch.inputs[batch.index == batch.index[0]]
    assert len(first) == 3 and not torch.equal(first[0], first[1]) and not torch.equal(first[1], first[2])


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(("world", "accumulate"), [(2, 1), (1, 3), (3, 2)])
def test_processes_share_the_steps_of_one(data, train, world, accumulate):
    whole = list(loader(data, train).epoch(1))
    ranks = [list(loader(data, train, rank=r, world=world, accumulate=accumulate).epoch(1)) for r in range(world)]
    for step, (single,) in enumerate(whole):
        parts = [part for micro_batch in zip(*(rank[step] for rank in ranks), strict=True) for part in micro_batch]
        assert len(parts) == world * accumulate and all(len(part.inputs) == max(part.count, 1) for part in parts)
        for name in ("inputs", "targets", "index"):
            assert torch.equal(torch.cat([getattr(part, name)[: part.count] for part in parts]), getattr(single, name))
        assert {part.step_count for part in parts} == {single.count}


def test_an_epoch_can_be_entered_anywhere(data):
    files = loader(data, augment=AugmentConfig(recipe="deit", mixup=0.8, cutmix=1.0))
    assert_same_steps(files.epoch(1, start=2), list(files.epoch(1))[2:])
    assert list(files.epoch(1, start=4)) == []


def test_workers_change_nothing(data):
    options = {"augment": AugmentConfig(recipe="deit", erase=0.5, mixup=0.8), "world": 2, "rank": 1, "accumulate": 2}
    before = {child.pid for child in multiprocessing.active_children()}
    here, there = loader(data, **options), loader(data, workers=2, **options)
    assert_same_steps(here.epoch(0), there.epoch(0))
    pids = {child.pid for child in multiprocessing.active_children()} - before
    assert len(pids) == 2
    there_again = there.epoch(1)
    next(there_again)  # and then abandoned
    assert_same_steps(here.epoch(2, start=1), there.epoch(2, start=1))
    assert {child.pid for child in multiprocessing.active_children()} - before == pids
    with pytest.raises(RuntimeError, match="ended by a later call"):
        next(there_again)


def test_workers_end_with_the_loader_also_in_the_middle(data):
    """And are deaf to Ctrl-C, which a terminal sends to all: their tracebacks would bury the word of the first process."""
    before = set(multiprocessing.active_children())
    files = loader(data, workers=1)
    running = files.epoch()
    next(running)
    (worker,) = set(multiprocessing.active_children()) - before
    for process in (worker.pid, forkserver._forkserver._forkserver_pid):
        status = Path(f"/proc/{process}/status").read_text()
        blocked = int(re.search(r"^SigBlk:\s*(\w+)$", status, re.MULTILINE)[1], 16)
        assert blocked >> (signal.SIGINT - 1) & 1
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    del worker
    del running, files
    gc.collect()
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.parametrize("workers", [0, 1])
def test_global_generators_are_left_alone(data, workers):
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    for _ in loader(data, workers=workers, augment=AugmentConfig(recipe="deit", erase=0.5, mixup=0.8)).epoch():
        assert random.getstate() == states[0]
        assert (np.random.get_state()[1] == states[1]).all()
        assert torch.equal(torch.get_rng_state(), states[2])


def test_mixing_knows_its_part(data):
    augment = AugmentConfig(recipe="none", mixup=0.8, label_smoothing=0.1)
    place = {"rank": 1, "world": 2, "accumulate": 2}
    plain = list(loader(data, augment=AugmentConfig(recipe="none"), **place).epoch(1))
    mixed = list(loader(data, augment=augment, **place).epoch(1))
    mixer = Mixer(2, augment, 0)
    expected = [[mixer(batch, 1, step, 2 * i + 1) for i, batch in enumerate(parts)] for step, parts in enumerate(plain)]
    assert_same_steps(mixed, expected)
    assert next(loader(data, train=False, augment=augment).epoch())[0].targets.dtype == torch.int64


def test_flips_as_fits_the_set(data):
    light = AugmentConfig(recipe="light", padding=0.0)
    pictures = {}
    for mirrored in (True, False):
        fitting = DataSet(**{**vars(data), "mirrored": mirrored})
        pictures[mirrored] = images_by_sample(loader(fitting, augment=light).epoch())
    assert any(not torch.equal(pictures[True][i], pictures[False][i]) for i in range(SAMPLES))
    asked = images_by_sample(loader(data, augment=AugmentConfig(recipe="light", padding=0.0, flip=False)).epoch())
    assert_same_images(asked, pictures[False])


def test_device_and_dtype(data):
    batch = next(loader(data, train=False, dtype=torch.float64).epoch())[0]
    assert batch.inputs.dtype == torch.float64 and batch.targets.dtype == torch.int64
    assert next(loader(data, train=False, device="meta").epoch())[0].inputs.device.type == "meta"


@pytest.fixture
def damaged(tmp_path: Path) -> DataSet:
    """Images 1, 3 and 4, 5 are broken: one in the first batch of three, all of the second but one, none of the third."""
    data = open_folder(write_folder(tmp_path, {"train": {"a": 4, "b": 4}}), DataConfig(image_size=SIZE, val_fraction=0))
    for i in (1, 3, 4):
        Path(data.splits["train"].paths[i]).write_bytes(b"broken")
    Path(data.splits["train"].paths[5]).unlink()
    return data


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_images_are_left_out_and_named(damaged, workers):
    paths = damaged.splits["train"].paths
    first, second, third = [batch for (batch,) in loader(damaged, train=False, batch_size=3, workers=workers).epoch()]
    assert first.index.tolist() == [0, 2] and first.targets.tolist() == [0, 0]
    assert (first.count, first.step_count, len(first.inputs)) == (2, 3, 2)
    assert len(first.broken) == 1 and paths[1] in first.broken[0]
    assert (second.count, second.step_count, second.inputs.shape) == (0, 3, (1, 3, SIZE, SIZE))
    assert len(second.targets) == len(second.index) == 1 and not second.inputs.any()
    assert [path in message for path, message in zip(paths[3:6], second.broken, strict=True)] == [True] * 3
    assert (third.index.tolist(), third.count, third.broken) == ([6, 7], 2, [])


def test_no_tensor_is_sent_to_workers(damaged):
    """Sending one moves its memory, in another thread, while the next request is cut from the same tensor."""
    made = loader(damaged, train=True, batch_size=3)
    next(made.readers.answers(0, step_parts(torch.arange(8), 3, 0, 0, 1, 1)))
    (request,) = made.readers.requests
    assert request == (0, [0, 1, 2], list(damaged.splits["train"].paths[:3]))
    assert all(type(draw) is int for draw in request.draws)


@pytest.mark.parametrize("workers", [0, 1])
def test_strict_stops_at_a_broken_image(damaged, workers):
    running = loader(damaged, train=False, batch_size=1, strict=True, workers=workers).epoch()
    assert next(running)[0].count == 1
    with pytest.raises(ValueError, match=f"cannot read image {damaged.splits['train'].paths[1]}: .*without --strict"):
        next(running)


def test_a_borrowed_broken_image_is_reported_once(damaged):
    steps = [list(loader(damaged, train=False, batch_size=1, rank=rank, world=2).epoch()) for rank in range(2)]
    counts = [sum(len(batch.broken) for (batch,) in of_rank) for of_rank in steps]
    assert counts == [4, 0] and all(batch.count == 0 and len(batch.inputs) == 1 for (batch,) in steps[1])


def test_a_batch_of_broken_images_can_be_mixed(damaged):
    augment = AugmentConfig(recipe="none", mixup=0.8, label_smoothing=0.1)
    only = damaged.splits["train"].subset(torch.tensor([3, 4]))
    ((batch,),) = loader(damaged, augment=augment, batch_size=2, split=only).epoch()
    assert batch.count == 0 and batch.targets.shape == (1, 2)


@pytest.mark.parametrize("workers", [0, 1])
def test_images_that_something_else_keeps(data, workers):
    split = MapSplit(one_colour, [10, 2, 30], torch.tensor([0, 1, 1])).subset(torch.tensor([0, 1, 2]))
    plain = DataSet(**{**vars(data), "mean": (0.0,) * 3, "std": (1.0,) * 3})
    files = loader(plain, train=False, split=split, workers=workers)
    ((batch,),) = files.epoch()
    assert (batch.inputs[:, 0, 0, 0] * 255).round().tolist() == [10, 30]
    assert batch.index.tolist() == [0, 2] and batch.broken == ["cannot read sample 2"]
