"""`dynavit pack`: an image folder as tar files of small images."""

from pathlib import Path
from typing import Annotated

from ..common.fits import AtLeastOne, Pixels, Range
from .next_steps import tell_next
from .parse import positional


@positional("data", "out")
def pack(
    data: Path,
    out: Path,
    size: Pixels = 256,
    quality: Annotated[int, Range(least=1, most=95)] = 90,
    shard_images: AtLeastOne = 2000,
    processes: AtLeastOne = 1,
    strict: bool = False,
    quiet: bool = False,
) -> None:
    """Write an image folder into tar files (WebDataset) of small images, which are read several times as fast.

    Samples keep their labels and order. After a kill the same command goes on: complete tar files are compared by checksum and
    kept, half ones are made again. Images that cannot be read are left out and named, here and in index.json.
    In Python: `dynavit.runs.pack.pack_folder(data, out)`.

    Args:
        data: folder with train/CLASS/image and val/CLASS/image, or only CLASS/image.
        out: folder to write to, new or begun by this command.
        size: shorter side in pixels; JPEG, PNG and WebP files that are smaller are stored as they are.
        quality: of the JPEG files that are written.
        shard_images: images of one tar file.
        processes: that work at once.
        strict: stop at an image that cannot be read.
        quiet: show no progress and no next steps.
    """
    from ..engine.progress import choose_progress
    from ..runs.pack import pack_folder

    index = pack_folder(
        data,
        out,
        size=size,
        quality=quality,
        shard_images=shard_images,
        processes=processes,
        strict=strict,
        progress=choose_progress(quiet),
    )
    stored, broken = sum(shard["images"] for shard in index["shards"]), sum(len(shard["broken"]) for shard in index["shards"])
    left_out = f", {broken} left out because they cannot be read" if broken else ""
    print(f"{stored} images of {len(index['classes'])} classes in {len(index['shards'])} tar files{left_out}: {out}")
    tell_next((["train", "--data-dir", out, "--out", "runs/packed"], "train on them"), quiet=quiet)
