"""Images with boxes and perhaps masks, as `common.data.Data` asks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch
from torch import Tensor

from ...common.data import LoaderOptions
from .record import Record
from .segments import plain_segment
from .transform import Preparation

if TYPE_CHECKING:
    from PIL.Image import Image

    from .loader import DetectionLoader

TASK = "detection"
EVAL_BATCH = 8


class Source(Protocol):
    """Where the images of a split come from. Reading processes get it, so it can be pickled.

    `quick`: reading an image takes less than handing it over, and needs no processes.
    """

    @property
    def quick(self) -> bool: ...

    def record(self, key: Any) -> Record:
        """The annotations alone."""
        ...

    def read(self, key: Any) -> "tuple[Image, Record]":
        """The image in RGB and its annotations; ValueError that names what cannot be read."""
        ...


@dataclass(frozen=True)
class DetectionSplit:
    """Images that `source` knows by their keys; `sizes` (n, 2) are their heights and widths as stored."""

    source: Source
    keys: Sequence[Any]
    sizes: Tensor

    def __len__(self) -> int:
        return len(self.keys)

    def records(self) -> list[Record]:
        return [self.source.record(key) for key in self.keys]

    def subset(self, index: Tensor) -> "DetectionSplit":
        return replace(self, keys=[self.keys[place] for place in index.tolist()], sizes=self.sizes[index])


@dataclass(frozen=True)
class DetectionData:
    """Images with boxes.

    Attributes:
        classes: names; their places are the labels.
        category_ids: of each class in its annotation file, for results in COCO's form.
        preparation: size and colours of inputs.
        has_masks: whether targets hold masks.
        mirrored: whether a mirrored image is as good, the default of `augment.flip`.
        eval_batch: images at a time in evaluation, at most.
        caution: what has to be said beside every result on these data, if there is such.
        model: what is trained unless the user names another.
    """

    name: str
    splits: Mapping[str, DetectionSplit]
    classes: list[str]
    category_ids: list[int]
    preparation: Preparation
    has_masks: bool
    mirrored: bool = True
    eval_batch: int = EVAL_BATCH
    notes: tuple[str, ...] = ()
    caution: str = ""
    task: str = TASK
    model: str | None = "retinanet"

    @property
    def mean(self) -> tuple[float, ...]:
        return self.preparation.mean

    @property
    def std(self) -> tuple[float, ...]:
        return self.preparation.std

    def loader(self, split: str, how: LoaderOptions) -> "DetectionLoader":
        """Batches of {"images": (b, 3, H, W), "sizes": (b, 2)} and b targets: boxes (n, 4) as x1 y1 x2 y2 and masks
        (n, h, w) in resized pixels, labels (n,), crowd_boxes (m, 4), image_id, original_size, scale, flipped, split."""
        from .loader import DetectionLoader

        return DetectionLoader(self, split, how)

    def describe(self) -> dict[str, Any]:
        """Names of classes, and how an image file becomes an input."""
        how = self.preparation
        return {
            "classes": list(self.classes),
            "category_ids": list(self.category_ids),
            "has_masks": self.has_masks,
            "mean": list(how.mean),
            "std": list(how.std),
            "short": how.short,
            "long": how.long,
            "interpolation": how.interpolation,
        }

    def prepared_as(self, facts: Mapping[str, Any], user: object) -> Self:
        """The same images in the size and colours that a model knows, if there are as many classes."""
        if (known := len(facts.get("classes", self.classes))) != len(self.classes):
            raise ValueError(f"{self.name} has {len(self.classes)} classes, the model of {user} tells {known} apart")
        return replace(self, preparation=preparation_of(facts))

    def subset(self, split: str, index: Tensor) -> Self:
        return replace(self, splits={**self.splits, split: self.splits[split].subset(index)})

    def with_masks(self, wanted: bool) -> Self:
        """The same with masks in its targets, or without."""
        if wanted and not self.has_masks:
            require_masks(self.name, self.splits)
        return replace(self, has_masks=wanted)

    def picture(self, split: str, number: int) -> "Image":
        """A stored image in RGB, to draw on."""
        chosen = self.splits[split]
        return chosen.source.read(chosen.keys[number])[0]

    def ground_truth(self, split: str) -> dict[str, Any]:
        """Everything that is annotated in a split, in COCO's form and in pixels of the stored images."""
        return coco_form(self.splits[split].records(), self.classes, self.category_ids)


def coco_form(records: Sequence[Record], classes: Sequence[str], category_ids: Sequence[int]) -> dict[str, Any]:
    """{"images", "annotations", "categories"}. Annotations are numbered anew from 1: evaluators take an id of 0 for no match,
    and rely on ids that are different."""
    annotations: list[dict[str, Any]] = []
    for record in records:
        for place, box in enumerate(record.boxes.tolist()):
            entry = {
                "id": len(annotations) + 1,
                "image_id": record.id,
                "category_id": category_ids[int(record.labels[place])],
                "bbox": box,
                "area": float(record.areas[place]),
                "iscrowd": int(record.crowd[place]),
            }
            if record.segments:
                entry["segmentation"] = plain_segment(record.segments[place], record.height, record.width)
            annotations.append(entry)
    images = [{"id": each.id, "file_name": each.name, "height": each.height, "width": each.width} for each in records]
    categories = [{"id": number, "name": name} for number, name in zip(category_ids, classes, strict=True)]
    return {"images": images, "annotations": annotations, "categories": categories}


def preparation_of(facts: Mapping[str, Any]) -> Preparation:
    """From what a run has stored (`DetectionData.describe`)."""
    return Preparation(
        facts["short"], facts["long"], tuple(facts["mean"]), tuple(facts["std"]), facts.get("interpolation", "bilinear")
    )


def require_masks(name: str, splits: Mapping[str, DetectionSplit]) -> None:
    """ValueError if nothing in a split has a mask."""
    for split, chosen in splits.items():
        if not any(record.masked.any() for record in (chosen.source.record(key) for key in chosen.keys)):
            raise ValueError(f"{name}: no object in {split} has a mask; loading.options.masks needs some")


def sizes_of(records: Sequence[Record]) -> Tensor:
    return torch.tensor([[record.height, record.width] for record in records], dtype=torch.int64).reshape(-1, 2)
