"""A whole pretrained model: timm's by name, or one whose weights are in a file."""

from typing import Any

import torch
from torch import nn

from ..models import create_model
from ..models.sound_weights import check_sound
from .foreign import TIMM
from .initial import State, read_source


def pretrained_model(source: str, name: str | None = None) -> tuple[str, nn.Module]:
    """A model's name and the model with all weights of `source`: timm:NAME, or a file, whose model is `name`.

    A release's checkpoint says itself what it belongs to. Anything that does not fit is an error.
    """
    if source.startswith(TIMM):
        if name is not None:
            raise ValueError(f"{source} names its model itself; --model is for files of weights")
        name = source.removeprefix(TIMM)
    given = read_source(source)
    if given.model is not None:
        check_sound(source, ((path, tensor, tensor) for path, tensor in given.weights.items()))
        report = getattr(given.model, "import_report", {})
        return name or str(report.get("arch", source)), given.model
    if name is None:
        raise ValueError(
            f"{source} holds weights, but not which model they belong to; say --model, as in --model deit_tiny_patch16_224"
        )
    model = create_model(name, **_class_option(name, given.weights))
    own = model.state_dict()
    try:
        model.load_state_dict(given.weights)
    except RuntimeError as error:
        wrong = " ".join(str(error).split())
        raise ValueError(f"{source} does not fit the model {name}: {wrong}") from error
    check_sound(source, ((path, tensor, own[path]) for path, tensor in given.weights.items()))
    return name, model


def class_names(count: int) -> list[str]:
    """Names of ImageNet's classes for a thousand, numbers for any other count: weights do not name their classes."""
    from ..data.imagenet import imagenet_classes
    from ..data.imagenet_labels import IMAGENET_CLASSES

    return imagenet_classes()[1] if count == IMAGENET_CLASSES else [str(number) for number in range(count)]


def _class_option(name: str, weights: State) -> dict[str, Any]:
    """num_classes, where the weights have the classifier that the model names."""
    with torch.device("meta"):  # only to look at it
        paths = (getattr(create_model(name), "default_cfg", None) or {}).get("classifier") or ()
    heads = (f"{path}.weight" for path in ([paths] if isinstance(paths, str) else paths))
    found = next((weights[head] for head in heads if head in weights), None)
    return {} if found is None else {"num_classes": len(found)}
