"""Batches: orientations, exact resume, equal for any number of processes and reading processes."""

import pytest
import torch

from dynavit.common.data import LoaderOptions
from dynavit.data.config import AugmentConfig, DataConfig
from dynavit.data.detection.export import write_coco
from dynavit.data.detection.orientation import oriented_draws
from dynavit.data.open import open_data


def opened(**options):
    return open_data(
        "shapes",
        None,
        DataConfig(options={"train": 23, "val": 5, "test": 3, "vary": 1.0, "size": 64, "largest": 30, **options}),
    )


def how(train=True, **changes):
    return LoaderOptions(
        train=train, **{"batch_size": 4, "seed": 3, "augment": AugmentConfig(), "config": DataConfig(workers=0), **changes}
    )


def facts(batch):
    """Everything of a batch in a form that can be compared."""
    targets = [
        {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in each.items()}
        for each in batch.targets
    ]
    return (
        batch.inputs["images"].tolist(),
        batch.inputs["sizes"].tolist(),
        targets,
        batch.index.tolist(),
        batch.count,
        batch.step_count,
    )


@pytest.mark.parametrize(("samples", "batch_size"), [(23, 4), (5, 8), (1, 1), (40, 5)])
def test_every_sample_once_and_whole_batches_of_one_orientation(samples, batch_size):
    tall = torch.rand(samples, generator=torch.Generator().manual_seed(samples)) < 0.4
    for epoch in range(3):
        draws = oriented_draws(tall, batch_size, 7, epoch)
        assert sorted(draws.tolist()) == list(range(samples))
        batches = [tall[batch] for batch in draws.split(batch_size)]
        mixed = [place for place, batch in enumerate(batches) if batch.any() and not batch.all()]
        whole = int(tall.sum()) // batch_size + int((~tall).sum()) // batch_size
        assert all(place >= whole for place in mixed)
        assert torch.equal(draws, oriented_draws(tall, batch_size, 7, epoch))


def test_orders_differ_by_seed_and_epoch():
    tall = torch.arange(40) % 2 == 0
    orders = {tuple(oriented_draws(tall, 4, seed, epoch).tolist()) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9
    first = [bool(tall[oriented_draws(tall, 4, 0, epoch)[0]]) for epoch in range(20)]
    assert len(set(first)) == 2  # neither orientation always comes first


def test_all_of_a_step_share_the_orientation():
    data = opened()
    loader = data.loader("train", how())
    tall = data.splits["train"].sizes[:, 0] > data.splits["train"].sizes[:, 1]
    steps = list(loader.epoch(1))
    assert len(steps) == loader.steps == 6 and loader.samples == 23
    whole = int(tall.sum()) // 4 + int((~tall).sum()) // 4
    for batches in steps[:whole]:
        (batch,) = batches
        assert len(set(tall[batch.index].tolist())) == 1 and batch.count == batch.step_count == 4


def test_an_epoch_goes_on_in_its_middle_to_the_bit():
    data = opened()
    whole = [facts(batch) for step in data.loader("train", how()).epoch(2) for batch in step]
    rest = [facts(batch) for step in data.loader("train", how()).epoch(2, start=3) for batch in step]
    assert rest == whole[3:]
    other = [facts(batch) for step in data.loader("train", how(seed=4)).epoch(2) for batch in step]
    assert other != whole


def test_samples_are_the_same_for_two_processes_and_micro_batches():
    data = opened()

    def samples(**changes):
        parts = [
            how(rank=rank, world=changes.get("world", 1), accumulate=changes.get("accumulate", 1))
            for rank in range(changes.get("world", 1))
        ]
        found = [{} for _ in range(6)]
        for part in parts:
            for step, batches in enumerate(data.loader("train", part).epoch(0)):
                for batch in batches:
                    for place in range(batch.count):
                        target = {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in batch.targets[place].items()}
                        height, width = batch.inputs["sizes"][place].tolist()
                        found[step][target["image_id"]] = (target, batch.inputs["images"][place, :, :height, :width].tolist())
        return found

    alone = samples()
    assert sum(map(len, alone)) == 23
    assert samples(world=2) == alone and samples(world=2, accumulate=2) == alone


def test_training_mirrors_half_and_evaluation_none():
    data = opened()
    flipped = [target["flipped"] for step in data.loader("train", how()).epoch() for batch in step for target in batch.targets]
    assert 4 < sum(flipped) < 19
    for augment in (AugmentConfig(flip=False), AugmentConfig(recipe="none")):
        loader = data.loader("train", how(augment=augment))
        assert not any(target["flipped"] for step in loader.epoch() for batch in step for target in batch.targets)
    evaluated = [batch for step in data.loader("val", how(train=False)).epoch() for batch in step]
    assert [index for batch in evaluated for index in batch.index.tolist()] == [0, 1, 2, 3, 4]
    assert not any(target["flipped"] for batch in evaluated for target in batch.targets)
    assert {target["split"] for batch in evaluated for target in batch.targets} == {"val"}


def test_evaluation_takes_few_at_a_time_however_many_are_asked_for():
    loader = opened(eval_batch=2).loader("val", how(train=False, batch_size=256))
    assert loader.steps == 3 and [len(batch.targets) for step in loader.epoch() for batch in step] == [2, 2, 1]
    assert opened(eval_batch=2).loader("train", how(batch_size=16)).steps == 2


def test_dtype_is_of_the_images_alone():
    ((batch,), *_) = opened().loader("val", how(train=False, dtype=torch.float64)).epoch()
    assert batch.inputs["images"].dtype == torch.float64 and batch.inputs["sizes"].dtype == torch.int64
    assert batch.targets[0]["boxes"].dtype == torch.float32 and batch.targets[0]["masks"].dtype == torch.bool


@pytest.mark.slow
def test_reading_processes_give_the_same(tmp_path):
    write_coco(opened(), "train", tmp_path / "all.json", tmp_path)
    data = open_data("detection_folder", tmp_path, DataConfig(options={"masks": True, "short": 48}))
    here = [facts(batch) for step in data.loader("train", how()).epoch(1) for batch in step]
    there = [facts(batch) for step in data.loader("train", how(config=DataConfig(workers=2))).epoch(1) for batch in step]
    assert here == there
