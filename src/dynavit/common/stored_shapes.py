"""Shapes of small things that several rooms store as JSON and read back."""

from typing import Annotated, Literal, NotRequired, TypedDict

from .fits import Count, Pixels, Range, check_fits


class StoredFile(TypedDict):
    """An entry of a manifest: what a file was when it was written."""

    bytes: Count
    sha256: str


class Preprocess(TypedDict):
    """How an image file becomes an input, see `data.preprocess`."""

    kind: Literal["files", "memory"]
    image_size: tuple[Pixels, Pixels]
    mean: list[Annotated[float, Range(least=-1e6, most=1e6)]]
    std: list[Annotated[float, Range(above=0, most=1e6)]]
    stored_size: NotRequired[tuple[Pixels, Pixels]]
    crop_pct: NotRequired[Annotated[float, Range(above=0, most=1)] | None]
    interpolation: NotRequired[str]


KINDS = ("files", "memory")


def check_preprocess(description: object, where: str = "preprocess") -> None:
    """ValueError if this is not how an image becomes an input."""
    check_fits(Preprocess, description, where)
    assert isinstance(description, dict)
    if not len(description["mean"]) == len(description["std"]) > 0:
        raise ValueError(
            f"{where}: mean and std have a number for each channel, got {description['mean']}, {description['std']}"
        )
    needed = "stored_size" if description["kind"] == "memory" else "crop_pct"
    if needed not in description:
        raise ValueError(f"{where}.{needed} is missing")
