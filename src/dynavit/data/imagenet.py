"""ImageNet-1k in folders that are named by WordNet ids, n01440764 and so on. Russakovsky et al., arXiv 1409.0575."""

from collections import Counter
from pathlib import Path

from ..common.torchvision_shim import ensure_torchvision
from .config import DataConfig
from .dataset import DataSet
from .folder import as_splits, list_images, photo_data_set, some


def open_imagenet(data_dir: Path | None, config: DataConfig) -> DataSet:
    """train/<id>/image and val/<id>/image of the 1,000 classes of ImageNet-1k.

    As `open_folder`, with exactly these classes, in the order that published weights have.
    """
    ids, names = imagenet_classes()
    files = list_images("imagenet", data_dir)
    for split, by_class in files.items():
        for wrong, those in (("lacks", set(ids) - by_class.keys()), ("also has", by_class.keys() - set(ids))):
            if those:
                raise ValueError(
                    f"data imagenet: {split} {wrong} the class folders {some(sorted(those))}; it needs exactly the "
                    f"{len(ids)} WordNet ids of ImageNet-1k, and `folder` opens any other set of classes"
                )
    return photo_data_set("imagenet", as_splits(files, ids), names, config)


def imagenet_classes() -> tuple[list[str], list[str]]:
    """WordNet ids and names for people, both in the order of labels. Two names that are the same carry their ids."""
    ensure_torchvision()
    from timm.data.imagenet_info import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    ids, names = info.label_names(), info.label_descriptions()
    often = Counter(names)
    return ids, [name if often[name] == 1 else f"{name} ({id})" for id, name in zip(ids, names, strict=True)]
