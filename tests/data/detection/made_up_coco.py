"""A small data set in COCO's form with every oddity of the real one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dynavit.data.detection.rle import counts_of, encode

SIZES = {7: (40, 60), 139: (64, 48), 285: (50, 50), 5000: (48, 80)}  # id: (height, width); 285 has no annotations
NAMES = {7: "a.jpg", 139: "grey/b.jpg", 285: "empty.png", 5000: "c.png"}
CATEGORIES = [
    {"id": 90, "name": "toothbrush"},
    {"id": 1, "name": "person", "supercategory": "person"},
    {"id": 13, "name": "stop sign"},
]


def crowd_mask() -> np.ndarray:
    mask = np.zeros(SIZES[139], bool)
    mask[5:20, 3:30] = True
    mask[30:40, 10:15] = True
    return mask


def disc(height: int, width: int, y: float, x: float, radius: float) -> np.ndarray:
    rows, columns = np.mgrid[:height, :width] + 0.5
    return (rows - y) ** 2 + (columns - x) ** 2 <= radius**2


def content() -> dict[str, Any]:
    crowd = crowd_mask()
    compressed = disc(*SIZES[5000], 20, 30, 9)
    annotations = [
        # a float box, several polygons, one of them too short to cover anything
        {"id": 12, "image_id": 7, "category_id": 1, "bbox": [5.5, 6.25, 20.0, 15.5], "area": 240.5, "iscrowd": 0,
         "segmentation": [[5.5, 6.25, 25.5, 6.25, 25.5, 14.0, 5.5, 14.0], [8.0, 16.0, 20.0, 16.0, 14.0, 21.75], [1, 1, 2, 2]]},
        # over the border
        {"id": 3, "image_id": 7, "category_id": 90, "bbox": [50, -5, 25, 20], "area": 150, "iscrowd": 0,
         "segmentation": [[50, 0, 60, 0, 60, 15, 50, 15]]},
        # no area, too thin, outside: nothing to learn
        {"id": 4, "image_id": 7, "category_id": 1, "bbox": [2, 2, 10, 10], "area": 0, "iscrowd": 0, "segmentation": []},
        {"id": 5, "image_id": 7, "category_id": 1, "bbox": [2, 2, 0.5, 10], "area": 5, "iscrowd": 0},
        {"id": 6, "image_id": 7, "category_id": 1, "bbox": [70, 2, 10, 10], "area": 100, "iscrowd": 0},
        # a crowd as uncompressed run lengths
        {"id": 0, "image_id": 139, "category_id": 1, "bbox": [3, 5, 27, 35], "area": int(crowd.sum()), "iscrowd": 1,
         "segmentation": {"size": list(crowd.shape), "counts": counts_of(encode(crowd)).tolist()}},
        {"id": 1, "image_id": 139, "category_id": 13, "bbox": [10, 40, 20, 20], "area": 400, "iscrowd": 0,
         "segmentation": [[10, 40, 30, 40, 30, 60, 10, 60]]},
        # compressed run lengths, no iscrowd, no area
        {"id": 2, "image_id": 5000, "category_id": 90, "bbox": [21, 11, 18, 18], "segmentation": encode(compressed)},
    ]  # fmt: skip
    images = [{"id": number, "file_name": NAMES[number], "height": h, "width": w} for number, (h, w) in SIZES.items()]
    return {"info": {}, "licenses": [], "images": images, "annotations": annotations, "categories": CATEGORIES}


def write_images(folder: Path) -> None:
    random = np.random.default_rng(0)
    for number, (height, width) in SIZES.items():
        grey = NAMES[number].startswith("grey")
        file = folder / NAMES[number]
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (height, width) if grey else (height, width, 3), np.uint8)).save(file)


def write_coco(folder: Path, splits: tuple[str, ...] = ("train2017", "val2017"), **changes: Any) -> Path:
    """annotations/instances_NAME.json and NAME/ of each split."""
    (folder / "annotations").mkdir(parents=True)
    for split in splits:
        write_images(folder / split)
        (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps({**content(), **changes}))
    return folder
