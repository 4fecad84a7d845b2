"""A split with boxes as files that others read: an annotation file in COCO's form, and its images."""

import json
from pathlib import Path

from ...common.files import replacing, write_text
from .dataset import DetectionData


def write_coco(data: DetectionData, split: str, file: Path, images: Path | None = None) -> None:
    """Write the annotations of a split, and into the folder `images`, if it is given, its images as PNG files.

    Names in the annotation file are relative to the folder of images: the data set's own, or `images`.
    """
    if split not in data.splits:
        raise ValueError(f"{data.name} has no split {split!r}; it has {', '.join(data.splits)}")
    content = data.ground_truth(split)
    if images is not None:
        for number, entry in enumerate(content["images"]):
            entry["file_name"] = str(Path(entry["file_name"]).with_suffix(".png"))
            with replacing(Path(images) / entry["file_name"]) as temporary:
                data.picture(split, number).save(temporary, "PNG")
    write_text(file, json.dumps(content) + "\n")
