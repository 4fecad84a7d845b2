"""Random crops of files decoded no larger than needed: timm's boxes, and timm's pixels where a file is decoded whole."""

import random

import numpy as np
import pytest
import torch
from PIL import Image

from dynavit.common.data import LoaderOptions
from dynavit.data import file_loader
from dynavit.data.config import AugmentConfig, DataConfig
from dynavit.data.crop import FULL_SIZE, RandomResizedCropAndInterpolation
from dynavit.data.open import open_data
from dynavit.data.read_image import read_image
from dynavit.data.transforms import eval_transform, train_transform

MEAN, STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)


def smooth(size: tuple[int, int], seed: int = 0) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def crop_of(side: int, interpolation: str = "bicubic"):
    """Our crop, and timm's."""
    ours = train_transform((side, side), AugmentConfig(auto_augment=""), MEAN, STD, interpolation=interpolation).transforms[0]
    return ours, RandomResizedCropAndInterpolation((side, side), interpolation=interpolation)


@pytest.mark.parametrize("size", [(500, 375), (30, 200), (2000, 1500)])
def test_a_seed_draws_the_box_that_timm_draws(size):
    ours, timms = crop_of(224)
    image = Image.new("L", size)
    for seed in range(200):
        random.seed(seed)
        box, state = ours.box(size), random.getstate()
        random.seed(seed)
        assert box == timms.get_params(image, timms.scale, timms.ratio)
        assert random.getstate() == state


def test_boxes_are_spread_as_the_paper_says():
    """The share of the area is uniform between 8 and 100 % before boxes that do not fit are drawn again."""
    ours, _ = crop_of(224)
    random.seed(0)
    areas = np.array([height * width / 1000**2 for _, _, height, width in (ours.box((1000, 1000)) for _ in range(4000))])
    uniform = np.random.default_rng(0).uniform(0.08, 1, 400_000)
    log_ratio = np.random.default_rng(1).uniform(np.log(3 / 4), np.log(4 / 3), 400_000)
    fits = np.maximum(uniform * np.exp(log_ratio), uniform / np.exp(log_ratio)) <= 1
    expected = np.quantile(uniform[fits], [0.1, 0.25, 0.5, 0.75, 0.9])
    assert np.abs(np.quantile(areas, [0.1, 0.25, 0.5, 0.75, 0.9]) - expected).max() < 0.03


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "lanczos"])
@pytest.mark.parametrize("size", [(60, 45), (20, 90)])
def test_pixels_of_images_decoded_whole_are_timms(size, interpolation):
    ours, timms = crop_of(24, interpolation)
    image = smooth(size)
    for seed in range(20):
        random.seed(seed)
        found = ours(image).tobytes()
        random.seed(seed)
        assert found == timms(image).tobytes()


def test_large_files_are_decoded_small_and_give_nearly_the_same_pixels(tmp_path):
    file = tmp_path / "large.jpg"
    smooth((640, 480)).save(file, quality=95)
    ours, timms = crop_of(32)
    whole, seen = read_image(file), set()
    for seed in range(40):
        random.seed(seed)
        image = read_image(file, reduction=ours.reduction)
        seen.add(image.size)
        assert image.info.get(FULL_SIZE, image.size) == (640, 480)
        random.seed(seed)
        box = ours.box((640, 480))
        assert min(box[2] * image.height / 480, box[3] * image.width / 640) >= 32
        random.seed(seed)
        found = np.asarray(ours(image), float)
        random.seed(seed)
        assert np.abs(found - np.asarray(timms(whole), float)).mean() < 1  # another filter
    assert seen == {(80, 60), (160, 120)}  # the smallest boxes are 128 pixels high


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_a_turned_photograph_is_cropped_as_it_is_seen(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = tmp_path / "turned.jpg"
    smooth((640, 320)).save(file, quality=95, exif=exif)
    ours, timms = crop_of(32)
    whole = read_image(file)
    assert whole.size == ((320, 640) if orientation in (6, 8) else (640, 320))
    for seed in range(10):
        random.seed(seed)
        image = read_image(file, reduction=ours.reduction)
        random.seed(seed)
        found = np.asarray(ours(image), float)
        random.seed(seed)
        assert np.abs(found - np.asarray(timms(whole), float)).mean() < 1


def test_only_jpeg_files_are_asked_and_a_broken_one_is_named(tmp_path):
    smooth((64, 64)).save(tmp_path / "a.png")
    asked = []
    assert read_image(tmp_path / "a.png", reduction=lambda size: asked.append(size) or 8).size == (64, 64)
    assert not asked
    smooth((640, 640)).save(tmp_path / "b.jpg")
    (tmp_path / "b.jpg").write_bytes((tmp_path / "b.jpg").read_bytes()[:2000])
    with pytest.raises(ValueError, match=r"cannot read image .*b.jpg"):
        read_image(tmp_path / "b.jpg", reduction=lambda size: 8)


def test_training_decodes_small_and_evaluation_whole(tmp_path, monkeypatch):
    for name in ("cat", "dog"):
        (tmp_path / "train" / name).mkdir(parents=True)
        smooth((640, 480)).save(tmp_path / "train" / name / "0.jpg", quality=95)
    data = open_data("folder", tmp_path, DataConfig(image_size=16, val_fraction=0))
    sizes = []

    def watched(*arguments, **options):
        sizes.append(read_image(*arguments, **options).size)
        return read_image(*arguments)

    def batch(train):
        how = LoaderOptions(batch_size=2, train=train, config=DataConfig(workers=0), augment=AugmentConfig(), seed=0)
        return next(iter(data.loader("train", how).epoch()))[0].inputs

    monkeypatch.setattr(file_loader, "read_image", watched)
    batch(train=True)
    assert sizes and max(sizes) < (640, 480)
    sizes.clear()
    found = batch(train=False)
    assert sizes == [(640, 480)] * 2
    plain = eval_transform(data.image_size, data.mean, data.std)
    assert torch.equal(found[0], plain(read_image(data.splits["train"].paths[0])))


def test_an_epoch_goes_on_in_the_middle_to_the_bit(tmp_path):
    for i, name in enumerate(("cat", "dog") * 3):
        (tmp_path / "train" / name).mkdir(parents=True, exist_ok=True)
        smooth((640, 480), seed=i).save(tmp_path / "train" / name / f"{i}.jpg")
    config = DataConfig(image_size=16, val_fraction=0, workers=0)
    data = open_data("folder", tmp_path, config)
    how = LoaderOptions(batch_size=2, train=True, config=config, augment=AugmentConfig(), seed=0)
    whole = [step[0] for step in data.loader("train", how).epoch(3)]
    rest = [step[0] for step in data.loader("train", how).epoch(3, start=1)]
    assert len(whole) == 3 and len(rest) == 2
    for one, other in zip(whole[1:], rest, strict=True):
        assert torch.equal(one.inputs, other.inputs) and torch.equal(one.index, other.index)
