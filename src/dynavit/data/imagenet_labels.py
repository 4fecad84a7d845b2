"""Labels of ImageNet-1k for a set that has some of its classes, so that weights with a thousand answers can be judged on it."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from .dataset import DataSet
from .folder import some
from .imagenet import imagenet_classes

IMAGENET_CLASSES = 1000


def with_imagenet_labels(data: DataSet, user: object) -> DataSet:
    """The same images with labels among the thousand of ImageNet-1k; `user` is named in the error."""
    numbers, how = imagenet_numbers(data.name, data.classes, user)
    table = torch.tensor(numbers)
    splits = {name: replace(split, labels=table[split.labels]) for name, split in data.splits.items()}
    names = imagenet_classes()[1]
    note = f"the {len(numbers)} classes of {data.name} are ImageNet's by {how}: {data.classes[0]} is {names[numbers[0]]}"
    return replace(data, splits=splits, classes=names, notes=(*data.notes, note))


def imagenet_numbers(data: str, classes: Sequence[str], user: object) -> tuple[list[int], str]:
    """The number of each class in ImageNet-1k, and what it was known by: WordNet ids, names, or numbers from 0 to 999."""
    ids, names = imagenet_classes()
    for how, known in (("WordNet id", ids), ("name", names)):
        number = {each: at for at, each in enumerate(known)}
        if all(each in number for each in classes):
            return [number[each] for each in classes], how
    if all(each.isascii() and each.isdigit() and int(each) < IMAGENET_CLASSES for each in classes):
        return [int(each) for each in classes], "number"
    strange = [each for each in classes if each not in ids]
    raise ValueError(
        f"{user} tells ImageNet's {IMAGENET_CLASSES} classes apart, and these of {data} are not among them: {some(strange)}; "
        f"name their folders by WordNet ids ({ids[0]}) or numbers (0 to {IMAGENET_CLASSES - 1}), or fine-tune the weights to "
        "your classes with dynavit train --init-from"
    )
