"""Penn-Fudan: 170 street scenes with 423 pedestrians and their masks (Wang et al., ACCV 2007)."""

from pathlib import Path

import numpy as np

from ...common.pictures import open_picture
from ..config import DataConfig
from .dataset import EVAL_BATCH, DetectionData
from .files import file_data
from .record import Record
from .rle import encode

FOLDER, IMAGES, MASKS = "PennFudanPed", "PNGImages", "PedMasks"
TEST = 50  # the last ones
PEDESTRIAN = 1  # the category's id in COCO's form


def open_penn_fudan(
    data_dir: Path | None,
    config: DataConfig,
    *,
    short: int | None = 320,
    long: int | None = 640,
    masks: bool = True,
    eval_batch: int = EVAL_BATCH,
) -> DetectionData:
    """Penn-Fudan: 170 photographs with pedestrians, boxes and masks

    The last 50 images are the test split; validation is cut from the others by `val_fraction`.

    Args:
        short, long: see `transform.Preparation`.
        masks: deliver masks too.
        eval_batch: images at a time in evaluation.
    """
    if data_dir is None:
        raise ValueError(f"data penn_fudan needs --data-dir, the folder {FOLDER} with {IMAGES}/ and {MASKS}/")
    folder = data_dir / FOLDER if (data_dir / FOLDER).is_dir() else data_dir
    files = sorted((folder / IMAGES).glob("*.png"))
    if len(files) <= TEST:
        raise ValueError(f"data penn_fudan: {folder / IMAGES} holds {len(files)} .png images; expected 170")
    records = [read_record(number, file, folder / MASKS / f"{file.stem}_mask.png") for number, file in enumerate(files, 1)]
    return file_data(
        "penn_fudan",
        {"train": records[:-TEST], "test": records[-TEST:]},
        ["pedestrian"],
        [PEDESTRIAN],
        config,
        short=short,
        long=long,
        masks=masks,
        keep_empty=False,
        eval_batch=eval_batch,
    )


def read_record(number: int, image: Path, mask: Path) -> Record:
    """Annotations from a mask: pixels of pedestrian k have the value k, and those of none 0."""
    try:
        with open_picture(mask) as opened:
            if opened.mode not in ("L", "P"):
                raise ValueError(f"its mode is {opened.mode}, expected 8 bits")
            values = np.asarray(opened)
    except Exception as error:  # a broken file makes decoders stumble in any way
        raise ValueError(f"cannot read the mask {mask}: {error}") from error
    objects = [values == value for value in np.unique(values) if value]
    height, width = values.shape
    return Record(
        number,
        str(image),
        image.name,
        height,
        width,
        np.array([extent(each) for each in objects], np.float64).reshape(-1, 4),
        np.zeros(len(objects), np.int64),
        np.array([each.sum() for each in objects], np.float64),
        np.zeros(len(objects), bool),
        [encode(each) for each in objects],
    )


def extent(mask: np.ndarray[tuple[int, int], np.dtype[np.bool_]]) -> tuple[int, int, int, int]:
    """The box around a mask that is not empty: x, y, width, height. The last row and column are inside."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return int(columns[0]), int(rows[0]), int(columns[-1] - columns[0] + 1), int(rows[-1] - rows[0] + 1)
