"""A model as a folder that is a valid Hugging Face model repository, and back.

repository/  config.json         architecture, options, swapped norms, classes, preprocessing, and a checksum of the weights
             model.safetensors   the weights
             policy.json         thresholds of a cascade's exits, if it was calibrated
             README.md           the model card: what it is, results, how to load it
"""

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from torch import Tensor, nn

from ..common.files import read_json, write_json, write_text
from ..common.owned import Names, names
from ..convert.plan import SwapPlan
from ..deploy.bundle.manifest import sha256
from ..deploy.directory import new_directory
from .directory import CheckpointName, RunDirectory, WeightsName
from .model_files import ModelCard, StoredGuest, fill_model, load_with_source
from .repository_card import card_text

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
POLICY = RunDirectory(".").policy_file.name
LIBRARY = "dynavit"  # also a key of the hub: it then shows how to load the model


class Config(TypedDict):
    """config.json; the fields of `ModelCard` stand beside these."""

    library_name: str
    dynavit_version: str
    weights: dict[str, Any]
    source: NotRequired[dict[str, Any]]
    swap: NotRequired[dict[str, Any]]  # the plan of a swap of norms after `create_model`


def is_repository(folder: Path) -> bool:
    """Whether a folder claims to be a model that `save_pretrained` wrote."""
    try:
        return bool(read_json(folder / CONFIG)["library_name"] == LIBRARY)
    except (OSError, ValueError, KeyError):
        return False


def save_pretrained(
    source: str | PathLike[str] | nn.Module,
    folder: str | PathLike[str],
    *,
    checkpoint: CheckpointName = "last",
    weights: WeightsName | None = None,
    classes: Sequence[str] | None = None,
    license: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a run's model, or a model of `create_model`, as a Hugging Face model repository; `dynavit.load(folder)` reads it.

    Args:
        source: the directory of a run, or a model, with or without swapped norms. A run brings classes, preprocessing, results
            and thresholds along.
        folder: is made; one that is there is replaced only with `overwrite`, and only if all in it is ours.
        checkpoint, weights: which weights of the run, as in `dynavit.load`.
        classes: names of the outputs of a model; a run knows its own.
        license: of the weights, as the hub spells it, such as "apache-2.0". Without one the card says that none was chosen.
        overwrite: replace a repository that is there.
    """
    about: dict[str, Any] = {}
    run: RunDirectory | None = None
    swap: SwapPlan | None = None
    if isinstance(source, nn.Module):
        model = source
        card, swap = _card_of_model(source, classes)
    else:
        if classes is not None:
            raise ValueError("classes= is for a model; a run knows its classes")
        run = RunDirectory(source)
        card = ModelCard.read(run.path)
        model, about = load_with_source(run.path, checkpoint, weights)
    # The names of plug-ins' files, not where they lie on this machine: a repository is for others.
    card = replace(card, guests=[StoredGuest(**{**guest, "file": Path(guest["file"]).name}) for guest in card.guests])
    with new_directory(Path(folder), ours=_ours, overwrite=overwrite) as new:
        _write(new, card, model, about, run, license, swap)
    return Path(folder)


def load_repository(folder: Path) -> nn.Module:
    """The model of a repository, in evaluation mode, after comparing its weights with their checksum. No code is run."""
    path = folder / CONFIG
    config = read_json(path, Config)
    own = {field.name for field in fields(ModelCard)}
    card = ModelCard.of_json({name: value for name, value in config.items() if name in own}, path)
    card.require_guests(folder, "norm", "model")
    file = folder / WEIGHTS
    if not file.is_file():
        raise ValueError(f"{file} is missing; copy the whole folder")
    if sha256(file) != config["weights"].get("sha256"):
        raise ValueError(f"{file} was altered: its SHA-256 is not the one in {CONFIG}")
    return fill_model(card, _read(file), path, file, config.get("swap"))


def _write(
    new: Path,
    card: ModelCard,
    model: nn.Module,
    about: dict[str, Any],
    run: RunDirectory | None,
    license: str | None,
    swap: SwapPlan | None,
) -> None:
    from importlib.metadata import version

    from safetensors.torch import save_file

    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    save_file(state, new / WEIGHTS, metadata={"format": "pt"})
    entry = {"file": WEIGHTS, "sha256": sha256(new / WEIGHTS), "bytes": (new / WEIGHTS).stat().st_size}
    header = {"library_name": LIBRARY, "dynavit_version": version(LIBRARY), "architecture": card.model["name"]}
    labels = {"id2label": {str(number): name for number, name in enumerate(card.classes)}} if card.classes else {}
    more = ({"source": about} if about else {}) | ({"swap": swap.to_dict()} if swap else {})
    write_json(new / CONFIG, {**header, **asdict(card), **labels, **more, "weights": entry})
    if run is not None and run.policy_file.is_file():
        write_json(new / POLICY, read_json(run.policy_file))
    parameters = sum(tensor.numel() for tensor in model.parameters())
    results = run.final_evaluation() if run is not None else None
    norm = swap.norm if swap else card.model.get("norm")
    write_text(new / CARD, card_text(card, norm, parameters, results, license))


def _ours(folder: Path) -> Names | None:
    return names(*(name.replace(".", r"\.") for name in (CONFIG, WEIGHTS, POLICY, CARD))) if is_repository(folder) else None


def _read(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except SafetensorError as error:
        raise ValueError(f"{file} cannot be read as safetensors: {error}") from error


def _card_of_model(model: nn.Module, classes: Sequence[str] | None) -> tuple[ModelCard, SwapPlan | None]:
    """How to build it again: a call of `create_model`, and the swap that followed. ValueError if they do not give it back."""
    from ..convert.swap import apply_plan
    from ..models.registry import MODELS, SWAP_OPTIONS
    from ..models.stored_call import build_stored, stored_call
    from ..norms.factory import NORMS

    call = getattr(model, "created_by", None)
    if call is None:
        raise ValueError(
            f"{type(model).__name__} was not made by dynavit.create_model, so nothing says how to build it again. That "
            "takes every name of timm too; save a swapped model of another library with dynavit.save_swapped, a trained one by "
            "the directory of its run"
        )
    call = stored_call(call)
    again = build_stored(call)
    swap = _swapped_since(model, again)
    if swap is not None:
        if hasattr(again, "swap_plan"):  # create_model swapped too, and the plan holds that as the earlier one
            call = {option: value for option, value in call.items() if option not in SWAP_OPTIONS}
            again = build_stored(call)
        apply_plan(again, SwapPlan.from_json(swap.to_dict()))
    if _structure(again) != _structure(model):
        raise ValueError(
            f"this {type(model).__name__} was changed after create_model({call['name']!r}), and not by dynavit.swap_norms "
            "alone: save a folded one by the directory that `dynavit fold` wrote"
        )
    norms = {name for name in (call.get("norm"), *(plan.norm for plan in _chain(swap))) if name is not None}
    found = [MODELS.guest(call["name"]), *(NORMS.guest(name) for name in sorted(norms))]
    guests = [
        StoredGuest(kind=each.kind, name=each.name, file=each.file, sha256=each.sha256) for each in found if each is not None
    ]
    return ModelCard(model=call, classes=list(classes or []), preprocess={}, data={}, guests=guests), swap


def _swapped_since(model: nn.Module, fresh: nn.Module) -> SwapPlan | None:
    """The plan of a swap that `create_model` did not do itself."""
    plan, own = (getattr(each, "swap_plan", None) for each in (model, fresh))
    if plan is None or (own is not None and replace(plan, deviation=None) == replace(own, deviation=None)):
        return None  # deviations are measured, and depend on the weights
    return plan


def _chain(plan: SwapPlan | None) -> list[SwapPlan]:
    return [plan, *_chain(plan.earlier)] if plan is not None else []


def _structure(model: nn.Module) -> tuple[dict[str, tuple[int, ...]], dict[str, type]]:
    """Shapes of tensors and classes of modules: norms of the same shape may compute something else."""
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    return shapes, {path: type(module) for path, module in model.named_modules()}
