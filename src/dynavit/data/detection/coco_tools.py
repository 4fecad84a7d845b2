"""The packages that judge detections and fill polygons as COCO does. Either one will do; boxes train without both."""

from collections.abc import Callable
from typing import Any, NamedTuple

from ...common.extras import not_installed


class CocoTools(NamedTuple):
    """One of the packages.

    Attributes:
        name: of the package.
        coco: class of an index over annotations.
        evaluator: class that matches detections and adds up.
        mask: module with `frPyObjects`, `merge` and `decode`.
    """

    name: str
    coco: Any
    evaluator: Any
    mask: Any


def _faster() -> CocoTools:
    import faster_coco_eval

    return CocoTools("faster_coco_eval", faster_coco_eval.COCO, faster_coco_eval.COCOeval_faster, faster_coco_eval.mask)


def _original() -> CocoTools:
    from pycocotools import coco, cocoeval, mask

    return CocoTools("pycocotools", coco.COCO, cocoeval.COCOeval, mask)


PACKAGES: dict[str, Callable[[], CocoTools]] = {"faster_coco_eval": _faster, "pycocotools": _original}


def coco_tools(purpose: str) -> CocoTools:
    """The first package that is installed; without any, a ValueError that says how to get one."""
    for name, package in PACKAGES.items():
        try:
            return package()
        except ModuleNotFoundError as error:
            if error.name != name:
                raise  # it is there, but something it needs is not
    raise ValueError(not_installed("faster-coco-eval", "detect", purpose))


def has_coco_tools() -> bool:
    try:
        coco_tools("")
    except ValueError:
        return False
    return True
