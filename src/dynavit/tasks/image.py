"""Problems whose samples are images: how a model gets its channels, and how a file becomes an input."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..common.stored_shapes import check_preprocess
from ..common.task import Task


class ImageTask(Task):
    """A task on images (b, c, height, width) of one size, with as many outputs of the model as `outputs` says."""

    @classmethod
    def outputs(cls, data: Any, options: Any) -> int:
        """Numbers that the model gives for an image: by default one for each class."""
        return len(data.classes)

    @classmethod
    def model_options(cls, data: Any, options: Any) -> dict[str, Any]:
        return {"num_classes": cls.outputs(data, options), "in_chans": data.channels}

    def read_input(self, path: Path, facts: Mapping[str, Any]) -> Tensor:
        from ..data.preprocess import preprocess

        if "preprocess" not in facts:
            raise ValueError("the run's model.json does not say how an image becomes an input: preprocess is missing")
        check_preprocess(facts["preprocess"])
        return preprocess(path, facts["preprocess"])[None]
