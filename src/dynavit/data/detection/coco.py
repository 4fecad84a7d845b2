"""COCO, and folders of one's own with an annotation file in COCO's form."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..config import DataConfig
from ..folder import some
from ..sampling import derive_seed
from .coco_file import CocoFile, read_coco
from .dataset import EVAL_BATCH, DetectionData
from .files import LONG, SHORT, cut, file_data, placed
from .record import Record

SPLITS = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}


def open_coco(
    data_dir: Path | None,
    config: DataConfig,
    *,
    short: int | None = SHORT,
    long: int | None = LONG,
    masks: bool = False,
    keep_empty: bool = False,
    eval_batch: int = EVAL_BATCH,
) -> DetectionData:
    """COCO: train2017/, val2017/ and annotations/instances_*.json, boxes and masks

    Other years and own data in this layout do too: images of `annotations/instances_NAME.json` lie in `NAME/`, `images/NAME/`
    or `images/`. Without a file for val some of train is cut off; without one for train the set is for evaluation only.

    Args:
        short, long: see `transform.Preparation`.
        masks: deliver masks too; polygons need the extra [detect].
        keep_empty: train on images without boxes too.
        eval_batch: images at a time in evaluation.
    """
    folder = _folder("coco", data_dir)
    files = {split: file for split in SPLITS if (file := _instances(folder, split)) is not None}
    if not files:
        raise ValueError(
            f"data coco: {folder} holds no annotations/instances_train*.json or instances_val*.json, only "
            f"{some(sorted(path.name for path in folder.iterdir()))}"
        )
    found = {split: read_coco(file) for split, file in files.items()}
    places = {split: _images(folder, file.stem.removeprefix("instances_")) for split, file in files.items()}
    notes = [
        f"{split}: annotations are {file.name}, not {some([other.name for other in others])}"
        for split, file in files.items()
        if (others := [other for other in _candidates(folder, split) if other != file])
    ]
    return _opened("coco", found, places, files, config, short, long, masks, keep_empty, eval_batch, notes)


def open_detection_folder(
    data_dir: Path | None,
    config: DataConfig,
    *,
    annotations: str | None = None,
    images: str | None = None,
    test_fraction: float = 0.0,
    short: int | None = SHORT,
    long: int | None = LONG,
    masks: bool = False,
    keep_empty: bool = False,
    eval_batch: int = EVAL_BATCH,
) -> DetectionData:
    """Images of one's own with one COCO file, or with one each in train/, val/, test/

    One file is cut into train and validation by `val_fraction` and `split_seed`.

    Args:
        annotations: the file, relative to the folder; the only .json in it if not given.
        images: the folder of images, likewise; that of the file, or `images` in it, if not given.
        test_fraction: part of one file that is kept for testing.
        short, long, masks, keep_empty, eval_batch: as of coco.
    """
    folder = _folder("detection_folder", data_dir)
    if not 0 <= test_fraction < 1:
        raise ValueError(f"loading.options.test_fraction={test_fraction} is a part of the images, at least 0 and less than 1")
    apart = {} if annotations is not None or _json_files(folder) else _apart(folder)
    if apart:
        if test_fraction:
            raise ValueError(f"data detection_folder: {folder} has folders for its splits; leave test_fraction out")
        files = {split: _only_json(there) for split, there in apart.items()}
        found = {split: read_coco(file) for split, file in files.items()}
        places = {split: _images_beside(files[split], found[split]) for split in apart}
    else:
        file = folder / annotations if annotations is not None else _only_json(folder)
        whole = read_coco(file)
        place = folder / images if images is not None else _images_beside(file, whole)
        splits = {"train": whole.records}
        if test_fraction:
            kept, held = cut(len(whole.records), test_fraction, derive_seed(config.split_seed, 1))
            splits = {name: [whole.records[i] for i in numbers] for name, numbers in (("train", kept), ("test", held))}
        files = dict.fromkeys(splits, file)
        found = {split: CocoFile(whole.category_ids, whole.classes, records) for split, records in splits.items()}
        places = dict.fromkeys(splits, place)
    return _opened("detection_folder", found, places, files, config, short, long, masks, keep_empty, eval_batch)


def _opened(
    name: str,
    found: Mapping[str, CocoFile],
    places: Mapping[str, Path],
    files: Mapping[str, Path],
    config: DataConfig,
    short: int | None,
    long: int | None,
    masks: bool,
    keep_empty: bool,
    eval_batch: int,
    notes: Sequence[str] = (),
) -> DetectionData:
    first, *others = found
    for other in others:
        if (found[other].category_ids, found[other].classes) != (found[first].category_ids, found[first].classes):
            raise ValueError(
                f"data {name}: {files[first]} and {files[other]} have different categories; all splits need the same"
            )
    records = {split: placed(found[split], places[split]) for split in found}
    return file_data(
        name,
        records,
        found[first].classes,
        found[first].category_ids,
        config,
        short=short,
        long=long,
        masks=masks,
        keep_empty=keep_empty,
        eval_batch=eval_batch,
        notes=notes,
        caution=shared_images(records),
    )


def shared_images(records: Mapping[str, Sequence[Record]]) -> str:
    """A warning if images that are judged on are trained on too, as in COCO128; otherwise nothing.

    The same image is the same file, or in another folder one of the same name with the same boxes.
    """
    trained = {key for record in records.get("train", ()) for key in _keys(record)}
    said = []
    for split in ("val", "test"):
        both = sum(any(key in trained for key in _keys(record)) for record in records.get(split, ()))
        if both:
            said.append(f"{both} of {len(records[split])} images of {split} are training images too")
    return f"{'; '.join(said)}: results on them measure fitting, not generalisation" if said else ""


def _keys(record: Record) -> list[object]:
    copied = (Path(record.name).name, record.height, record.width, record.boxes.tobytes())
    return [record.file, *([copied] if len(record.boxes) else [])]


def _folder(name: str, data_dir: Path | None) -> Path:
    if data_dir is None:
        raise ValueError(f"data {name} needs --data-dir, the folder that holds images and annotations")
    if not data_dir.is_dir():
        raise ValueError(f"data {name}: there is no folder {data_dir}")
    return data_dir


def _instances(folder: Path, split: str) -> Path | None:
    """The annotation file of a split: of that name alone, else of the newest year, and others, such as valminusminival, only
    where there is neither."""
    files = _candidates(folder, split)
    rests = {file: file.stem.removeprefix(f"instances_{split}") for file in files}
    for chosen in ([file for file in files if not rests[file]], [file for file in files if rests[file].isdigit()], files):
        if chosen:
            return chosen[-1]
    return None


def _candidates(folder: Path, split: str) -> list[Path]:
    return sorted((folder / "annotations").glob(f"instances_{split}*.json"))


def _apart(folder: Path) -> dict[str, Path]:
    """The folder of each split, where each has its own."""
    found = {}
    for split, names in SPLITS.items():
        places = [folder / name for name in names if _json_files(folder / name)]
        if len(places) > 1:
            raise ValueError(
                f"data detection_folder: {places[0]} and {places[1]} are both folders of {split}; keep one of them"
            )
        if places:
            found[split] = places[0]
    return found


def _images(folder: Path, name: str) -> Path:
    places = [folder / name, folder / "images" / name, folder / "images"]
    for place in places:
        if place.is_dir():
            return place
    raise ValueError(f"data coco: there is no folder of images {places[0]}, nor {places[1]}")


def _images_beside(file: Path, found: CocoFile) -> Path:
    """The folder that names in an annotation file start from: the file's own, one above, or `images` in either."""
    places = [place for base in (file.parent, file.parent.parent) for place in (base, base / "images")]
    for place in places:
        if (place / found.records[0].name).is_file():
            return place
    raise ValueError(
        f"{file} names the image {found.records[0].name}, which is neither in {places[0]} nor in {places[1]}; say where images "
        "are with --loading.options.images"
    )


def _json_files(folder: Path) -> list[Path]:
    """The annotation files in a folder, or else in `annotations/`. Hidden ones, which systems leave behind, do not count."""
    for place in (folder, folder / "annotations"):
        if files := sorted(file for file in place.glob("*.json") if not file.name.startswith(".")):
            return files
    return []


def _only_json(folder: Path) -> Path:
    files = _json_files(folder)
    if len(files) != 1:
        raise ValueError(
            f"data detection_folder: {folder} holds {len(files)} annotation files (.json): "
            f"{some([file.name for file in files])}; name one with --loading.options.annotations"
        )
    return files[0]
