"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017, arXiv 1708.07747), 28x28 pixels, grey, from the official idx files."""

from pathlib import Path

import numpy as np
import torch

from .config import DataConfig
from .configured import configured
from .dataset import DataSet, MemorySplit
from .downloads import fetch, kept_in
from .idx import read_idx

ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"  # where torchvision fetches it

CLASSES = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
SHA256 = {  # of the plain contents
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


def open_fashion_mnist(data_dir: Path | None, config: DataConfig) -> DataSet:
    """70,000 articles of clothing, 28x28, grey.

    From the four official files, plain or .gz, in `data_dir` or where torchvision puts them below it.
    """
    data_dir = kept_in("fashion_mnist", data_dir, config)
    folders = [data_dir, data_dir / "FashionMNIST" / "raw"]
    if config.download and not all(_find(name, folders) for name in SHA256):
        fetch("fashion_mnist", ADDRESS, data_dir, _download)
    train, test = (_split(prefix, folders) for prefix in ("train", "t10k"))
    splits = {"train": train, "test": test}
    return configured(DataSet("fashion_mnist", splits, CLASSES, train.size, (0.2860,), (0.3530,)), config)


def _download(place: Path) -> None:
    from torchvision.datasets import FashionMNIST

    FashionMNIST(place, download=True)


def _split(prefix: str, folders: list[Path]) -> MemorySplit:
    images = _read(f"{prefix}-images-idx3-ubyte", 3, folders)
    labels = _read(f"{prefix}-labels-idx1-ubyte", 1, folders)
    if len(images) != len(labels):
        raise ValueError(f"fashion_mnist: {len(images)} images but {len(labels)} labels in the {prefix} files")
    return MemorySplit(torch.from_numpy(images[:, None].copy()), torch.from_numpy(labels.astype(np.int64)))


def _read(name: str, axes: int, folders: list[Path]) -> np.ndarray:
    path = _find(name, folders)
    if path is None:
        raise FileNotFoundError(
            f"fashion_mnist: found neither {name} nor {name}.gz in {' or '.join(map(str, folders))}; "
            "give the folder that holds it, or --download"
        )
    return read_idx(path, axes, SHA256[name])


def _find(name: str, folders: list[Path]) -> Path | None:
    paths = (folder / file for folder in folders for file in (name, f"{name}.gz"))
    return next((path for path in paths if path.is_file()), None)
