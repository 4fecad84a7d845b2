"""Views of images: how many, of what size, and that the same seed gives the same whoever makes them."""

import pytest
import torch

from data.image_files import write_folder
from dynavit.common.data import LoaderOptions
from dynavit.data.config import AugmentConfig, DataConfig
from dynavit.data.dataset import DataSet, MemorySplit
from dynavit.data.folder import open_folder
from dynavit.data.multicrop import MultiCrop, View, dino_views, multicrop_loader

VIEWS = dino_views((32, 32), (16, 16), 4, (0.4, 1.0), (0.1, 0.4))
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def how(train=True, batch_size=4, seed=0, augment=None, workers=0, **more):
    config = DataConfig(workers=workers)
    return LoaderOptions(
        train=train, batch_size=batch_size, seed=seed, augment=augment or AugmentConfig(), config=config, **more
    )


@pytest.fixture(scope="module")
def memory():
    pixels = torch.randint(256, (10, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    split = MemorySplit(pixels, torch.arange(10) % 2)
    return DataSet("noise", {"train": split}, ["a", "b"], (32, 32), MEAN, STD)


def all_views(loader, epoch=0):
    """{index: its views}"""
    found = {}
    for step in loader.epoch(epoch):
        for batch in step:
            for place, index in enumerate(batch.index[: batch.count].tolist()):
                found[index] = [view[place] for view in batch.inputs]
    return found


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(x, y) for index in a for x, y in zip(a[index], b[index], strict=True))


def close(a, b):
    return all(torch.allclose(x, y, atol=1e-5) for index in a for x, y in zip(a[index], b[index], strict=True))


def test_number_size_and_range(memory):
    loader = multicrop_loader(memory, "train", how(), VIEWS)
    (batch,) = next(iter(loader.epoch()))
    assert [tuple(view.shape) for view in batch.inputs] == [(4, 3, 32, 32)] * 2 + [(4, 3, 16, 16)] * 4
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    for view in batch.inputs:
        pixels = view * std + mean
        assert float(pixels.min()) > -1e-5 and float(pixels.max()) < 1 + 1e-5
        assert float(pixels.std()) > 0.05


def test_the_last_step_is_full_or_left_out(memory):
    loader = multicrop_loader(memory, "train", how(), VIEWS)
    assert (loader.steps, loader.samples) == (2, 10)
    assert [sum(batch.count for batch in step) for step in loader.epoch()] == [4, 4]
    assert [len(list(loader.epoch(0, start))) for start in (0, 1, 2)] == [2, 1, 0]
    assert multicrop_loader(memory, "train", how(batch_size=64), VIEWS).steps == 1


def test_seeds_and_epochs(memory):
    views = lambda epoch=0, **options: all_views(multicrop_loader(memory, "train", how(batch_size=10, **options), VIEWS), epoch)  # noqa: E731
    first = views()
    assert same(first, views()) and not same(first, views(seed=1)) and not same(first, views(epoch=1))
    distinct = {view.double().sum().item() for view in first[0]}
    assert len(distinct) == len(VIEWS)


def test_neither_the_batch_nor_the_process_changes_a_view(memory):
    whole = all_views(multicrop_loader(memory, "train", how(batch_size=10), VIEWS))
    parts = {}
    for rank in (0, 1):
        parts |= all_views(multicrop_loader(memory, "train", how(batch_size=10, rank=rank, world=2, accumulate=3), VIEWS))
    assert whole.keys() == parts.keys() and close(whole, parts)


def test_small_images_are_not_blurred():
    assert MultiCrop(VIEWS, True, MEAN, STD).largest_radius == 0.0
    large = dino_views((224, 224), (96, 96), 8, (0.4, 1.0), (0.05, 0.4))
    assert MultiCrop(large, True, MEAN, STD).largest_radius == pytest.approx(2.0)
    middle = dino_views((64, 64), (32, 32), 8, (0.4, 1.0), (0.05, 0.4))
    assert MultiCrop(middle, True, MEAN, STD).largest_radius == pytest.approx(2 * 64 / 224)


def test_how_often_views_are_blurred_and_solarised():
    first, second, *local = dino_views((224, 224), (96, 96), 8, (0.4, 1.0), (0.05, 0.4))
    assert (first.blur, first.solarise, second.blur, second.solarise) == (1.0, 0.0, 0.1, 0.2)
    assert len(local) == 8 and {(view.blur, view.solarise, view.size) for view in local} == {(0.5, 0.0, (96, 96))}


def test_without_colours_a_whole_view_is_the_image():
    crops = MultiCrop((View((8, 8), (1.0, 1.0), 0.0, 0.5),), False, (0.0,), (1.0,), colours=0.0)
    image = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    numbers = torch.rand(3, crops.numbers, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    numbers[:, 10:20] = 0.5  # square boxes
    torch.testing.assert_close(crops(image, numbers)[0], image, rtol=1e-5, atol=1e-6)


def test_what_has_no_meaning_for_views_is_named(memory):
    with pytest.raises(ValueError, match="augment.mixup is for images with labels"):
        multicrop_loader(memory, "train", how(augment=AugmentConfig(mixup=0.8)), VIEWS)


def test_files_give_the_same_with_and_without_workers(tmp_path):
    write_folder(tmp_path, {"train": {"a": 3, "b": 3}})
    data = open_folder(tmp_path, DataConfig(image_size=32, val_fraction=0))
    views = lambda **options: all_views(multicrop_loader(data, "train", how(batch_size=2, **options), VIEWS))  # noqa: E731
    alone = views()
    assert [tuple(view.shape) for view in alone[0]] == [(3, 32, 32)] * 2 + [(3, 16, 16)] * 4
    assert same(alone, views(workers=2)) and not same(alone, views(seed=1))
