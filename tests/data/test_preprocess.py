"""An image file goes the way of the data set's own images."""

import pytest
import torch
from PIL import Image

from dynavit.data.config import DataConfig
from dynavit.data.configured import configured
from dynavit.data.dataset import DataSet, FileSplit, MemorySplit
from dynavit.data.loader import make_loader
from dynavit.data.preprocess import describe_preprocessing, preprocess


def bytes_of(n, c, side):
    return torch.randint(256, (n, c, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("image_size", [None, 10, 20, 4])  # as stored, padded, enlarged, shrunk
def test_a_file_equals_the_loaders_image(tmp_path, channels, image_size):
    images = bytes_of(4, channels, 8)
    split = MemorySplit(images, torch.tensor([0, 0, 1, 1]))
    config = DataConfig(image_size=image_size, val_fraction=0)
    data = DataSet("x", {"train": split, "test": split}, ["a", "b"], (8, 8), (0.3,) * channels, (0.2,) * channels)
    data = configured(data, config)
    ((batch,),) = make_loader(data, "test", train=False, batch_size=4, config=config).epoch()
    for image, expected in zip(images, batch.inputs, strict=True):
        Image.fromarray(image.permute(1, 2, 0).squeeze(-1).numpy()).save(tmp_path / "x.png")
        assert torch.equal(preprocess(tmp_path / "x.png", describe_preprocessing(data)), expected)


@pytest.mark.parametrize("crop_pct", [None, 0.5])
@pytest.mark.parametrize("side", [24, 80])  # of which 1 and 0.875 is seen by default
def test_files_go_through_the_evaluation_transform(tmp_path, crop_pct, side):
    Image.fromarray(bytes_of(1, 3, 90)[0].permute(1, 2, 0).numpy()).save(tmp_path / "x.png")
    split = FileSplit([str(tmp_path / "x.png")], torch.tensor([0]))
    data = DataSet("x", {"test": split}, ["a", "b"], (side, side), (0.3, 0.4, 0.5), (0.2, 0.3, 0.4), crop_pct=crop_pct)
    loader = make_loader(data, "test", train=False, batch_size=1, config=DataConfig(workers=0))
    ((batch,),) = loader.epoch()
    assert torch.equal(preprocess(tmp_path / "x.png", describe_preprocessing(data)), batch.inputs[0])
