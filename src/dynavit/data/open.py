"""Names of data sets, and what opens them. Openers are imported when called: digits need neither timm nor torchvision."""

from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from ..common.registry import nearest_match_error
from .config import DataConfig
from .dataset import DataSet


class Entry(NamedTuple):
    module: str
    function: str
    about: str


DATA = {
    "digits": Entry("digits", "open_digits", "1,797 handwritten digits, 8x8, part of the package"),
    "fashion_mnist": Entry("fashion_mnist", "open_fashion_mnist", "70,000 articles of clothing, 28x28, grey"),
    "cifar10": Entry("cifar", "open_cifar10", "60,000 small photographs, 32x32, 10 classes"),
    "cifar100": Entry("cifar", "open_cifar100", "60,000 small photographs, 32x32, 100 classes"),
    "folder": Entry("folder", "open_folder", "train/<class>/image and val/<class>/image"),
    "imagenet": Entry("imagenet", "open_imagenet", "the same with the 1,000 classes of ImageNet-1k"),
    "list": Entry("lists", "open_lists", "text files with `path label` lines, train_list and val_list"),
}


def open_data(name: str, data_dir: Path | None = None, config: DataConfig | None = None) -> DataSet:
    """Open a data set by its name in `list_data()`, or by a scheme string of timm (hfds/..., wds/..., torch/...)."""
    config = config or DataConfig()
    data_dir = Path(data_dir).expanduser() if data_dir is not None else None
    if "/" in name:
        return import_module(".timm_scheme", __package__).open_scheme(name, data_dir, config)
    if name not in DATA:
        raise nearest_match_error("data set", name, DATA)
    entry = DATA[name]
    return getattr(import_module(f".{entry.module}", __package__), entry.function)(data_dir, config)


def list_data() -> dict[str, str]:
    """Name and one line about each data set."""
    return {name: entry.about for name, entry in DATA.items()}
