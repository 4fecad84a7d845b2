"""Images prepared for the weights that a training starts from.

Weights are made for pixels of one mean and deviation, cut and resized in one way; images prepared otherwise cost accuracy, and
nothing else would show it. timm knows the preparation of its weights, and a run has stored its own.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.configured import describe_preparation, prepared_for_weights
from ..data.dataset import DataSet
from .config import TrainConfig
from .directory import RunDirectory
from .foreign import TIMM
from .model_files import ModelCard

if TYPE_CHECKING:
    from ..common.data import Data

OPTIONS = "--loading.image_size, mean, std, crop_pct, interpolation"


def prepared_for_training(config: TrainConfig, data: "Data", resumed: Path | None = None) -> "Data":
    """The data as the initial weights know images, or as in the run that is `resumed`; options of `--loading` come first."""
    if not isinstance(data, DataSet):
        return data
    if resumed is not None and RunDirectory(resumed).card_file.is_file():
        return prepared_for_weights(data, ModelCard.read(resumed).preprocess, config.loading)
    known = known_preparation(config.init_from, config.model) if config.init_from is not None else {}
    if not known:
        return data
    prepared = prepared_for_weights(data, known, config.loading)
    notes = [f"images are prepared as for {config.init_from}: {describe_preparation(prepared)} ({OPTIONS})"]
    if known.get("crop_mode", "center") != "center":
        notes.append(
            f"timm prepares images for these weights with crop_mode {known['crop_mode']}, here they are cut in the middle"
        )
    return replace(prepared, notes=(*prepared.notes, *notes))


def known_preparation(init_from: str, model: str) -> dict[str, Any]:
    """The preparation that the weights were made with, as of `data.preprocess`; {} where nothing tells.

    A file of weights says nothing about itself, but a model of timm comes with timm's own description.
    """
    from ..models.registry import home_of

    if init_from.startswith(TIMM):
        return timm_preparation(init_from.removeprefix(TIMM))
    if Path(init_from).is_dir():
        return ModelCard.read(Path(init_from)).preprocess
    return timm_preparation(model) if home_of(model) == "timm" else {}


def timm_preparation(name: str) -> dict[str, Any]:
    """timm's description of a model's input, in our words, and its crop_mode; {} for a name that timm does not know."""
    from ..common.torchvision_shim import ensure_torchvision

    ensure_torchvision()
    import timm

    if ":" in name:  # hf-hub:..., which only its hub describes
        from .initial import read_source

        config = getattr(read_source(f"timm:{name}").model, "pretrained_cfg", {})
    else:
        try:
            found = timm.get_pretrained_cfg(name)
        except RuntimeError:  # a tag that this model does not have; building it says so better
            found = None
        config = found.to_dict() if found is not None else {}
    return of_pretrained_config(config)


def of_pretrained_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """timm's `pretrained_cfg` in our words, as far as it goes."""
    known = {key: config[key] for key in ("mean", "std", "crop_pct", "interpolation", "crop_mode") if config.get(key)}
    return known | ({"image_size": list(config["input_size"][1:])} if config.get("input_size") else {})
