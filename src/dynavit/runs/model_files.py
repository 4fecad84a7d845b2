"""Files -> models: run directories, bundles, releases, state dicts."""

import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NotRequired, TypedDict

import torch
from torch import Tensor, nn

from ..common.files import read_json, write_json
from ..common.fits import check_fits
from ..common.plugins import require_guests
from ..common.stored_shapes import KINDS, check_preprocess
from ..deploy.bundle.manifest import is_bundle
from ..models.released import import_released
from .directory import CheckpointName, RunDirectory, WeightsName

FIRST_TASK = "classification"  # of runs from before cards named their task

# Keys under which other checkpoints keep their weights; averaged ones first, because those were evaluated.
CONTAINERS = ("state_dict_ema", "model_ema", "state_dict", "model", "model_state_dict")


class StoredModel(TypedDict):
    """Keyword arguments of `create_model`; options of the model are checked when it is built."""

    name: str
    norm: NotRequired[str | None]
    norm_options: NotRequired[dict[str, Any] | None]


class StoredGuest(TypedDict):
    """See `common.registry.Guest`."""

    kind: str
    name: str
    file: str
    sha256: str


@dataclass
class ModelCard:
    """The model and the inputs that a run's weights belong to: the file model.json.

    Attributes:
        model: keyword arguments of `create_model`, see `models.stored_call`.
        classes: names, in the order of the model's outputs; empty where there are no classes.
        preprocess: how an image becomes an input, see `data.preprocess`; empty where inputs are no images.
        data: name of the data set and number of samples in each split.
        fold: for a run that `dynavit fold` wrote: where it comes from, and the report. None for a trained one.
        task: the task the model was trained for.
        task_options: its options.
        more: further facts about the data, as the data set described them.
        guests: norms, models, tasks and data sets from outside the package that the run needs, with their files.
    """

    model: dict[str, Any]
    classes: list[str]
    preprocess: dict[str, Any]
    data: dict[str, Any]
    fold: dict[str, Any] | None = None
    task: str = ""
    task_options: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    guests: list[StoredGuest] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.task:
            from ..models.registry import task_of

            self.task = task_of(self.model["name"]) or FIRST_TASK

    @property
    def facts(self) -> dict[str, Any]:
        """The data set's description of itself (`describe`)."""
        own = {"classes": self.classes, "preprocess": self.preprocess}
        return {**self.more, **{name: value for name, value in own.items() if value}}

    @property
    def described_data(self) -> SimpleNamespace:
        """The facts as attributes: a stand-in for the data set where a task is built to predict alone."""
        image = {name: tuple(self.preprocess[name]) for name in ("image_size", "mean", "std") if name in self.preprocess}
        channels = {"channels": len(image["mean"])} if "mean" in image else {}
        return SimpleNamespace(name=self.data.get("name"), classes=self.classes, **channels, **image, **self.more)

    @property
    def input_size(self) -> tuple[int, ...]:
        """(channels, height, width)"""
        if not self.preprocess:
            raise ValueError(f"the model {self.model['name']} takes no images of one size, so it has no input size")
        return (len(self.preprocess["mean"]), *self.preprocess["image_size"])

    def require_guests(self, user: object, *kinds: str) -> None:
        """Check that guests of these kinds are registered; a file that has changed is a warning."""
        for note in require_guests([guest for guest in self.guests if guest["kind"] in kinds], user):
            warnings.warn(note, stacklevel=2)

    def write(self, run: Path) -> None:
        write_json(RunDirectory(run).card_file, asdict(self))

    @classmethod
    def read(cls, run: Path) -> "ModelCard":
        path = RunDirectory(run).card_file
        if not path.is_file():
            what = "is not a directory" if not run.is_dir() else f"has no {path.name}, so it is not a run of `dynavit train`"
            if (run / "config.json").is_file() and (run / "model.safetensors").is_file():
                what = f"is a Hugging Face repository, which commands do not take; in Python: dynavit.load({str(run)!r})"
            raise ValueError(f"{run} {what}")
        return cls.of_json(read_json(path), path)

    @classmethod
    def of_json(cls, card: dict[str, Any], path: Path) -> "ModelCard":
        """The card of a file's content; errors name the file."""
        try:
            check_fits(cls, card)
            check_fits(StoredModel, card["model"], "model")
            _check_outputs(card)
            if card["preprocess"].get("kind") in KINDS:  # a data set of the user's own may describe it in its own way
                check_preprocess(card["preprocess"])
            return cls(**card)
        except ValueError as error:
            raise ValueError(f"{path} is damaged, or not from this version: {error}") from error


def _check_outputs(card: Mapping[str, Any]) -> None:
    """A task of ours whose outputs are the classes has a name for each of them; what others predict is their own business."""
    from ..tasks.classification import Classification
    from ..tasks.table import TASKS

    task = card.get("task") or FIRST_TASK
    if not card["classes"] or task not in TASKS or TASKS.guest(task) is not None:
        return
    names, outputs = len(card["classes"]), card["model"].get("num_classes")
    if issubclass(TASKS[task], Classification) and outputs not in (None, names):
        raise ValueError(f"there are {names} names of classes for a model with num_classes={outputs}")


def load(
    path: str | PathLike[str],
    checkpoint: CheckpointName = "last",
    weights: WeightsName | None = None,
    *,
    trust_pt2: bool = False,
) -> nn.Module:
    """The model of a run directory, a bundle, or a folder or hub id of `save_pretrained`, in evaluation mode.

    A bundle gives a module without parameters that answers like the model it was exported from; `.bundle` is the rest.

    Args:
        path: the `--out` of `dynavit train`, `dynavit fold` or `dynavit export`, the folder of `save_pretrained`, or owner/name
            on the Hugging Face hub, whose files are downloaded once.
        checkpoint: the end of the training, or where validation was best.
        weights: "ema" are the averaged ones; by default those, if the run kept any.
        trust_pt2: open a .pt2 bundle, which can run any code of the one who made it. Other files run none.
    """
    from .hub import fetch, looks_like_hub_id
    from .repository import is_repository, load_repository

    run = Path(path)
    if is_bundle(run):
        if (checkpoint, weights) != ("last", None):
            raise ValueError(f"{run} is a bundle, which holds one set of weights; choose them when you export a run")
        from ..deploy.bundle.as_model import BundleModel
        from ..deploy.bundle.runner import load_bundle

        return BundleModel(load_bundle(run, trust_pt2=trust_pt2)).eval()
    if is_repository(run) or (not run.exists() and looks_like_hub_id(str(path))):
        if (checkpoint, weights) != ("last", None):
            raise ValueError(f"{path} holds one set of weights; choose them when you save a run")
        return load_repository(run if run.exists() else fetch(str(path)))
    return load_with_source(run, checkpoint, weights)[0]


def load_with_source(
    run: Path, checkpoint: CheckpointName = "last", weights: WeightsName | None = None
) -> tuple[nn.Module, dict[str, Any]]:
    """The model of a run, and which weights it has: {"run", "checkpoint", "weights", "step", "sha256" of their file}.

    Both are of the same checkpoint, also where the run is training and makes new ones.
    """
    from ..engine.checkpoint import EMA, MODEL, TASK, read_manifest, read_weights, unmoved, verify_checkpoint

    card = ModelCard.read(run)
    card.require_guests(run, "norm", "model")
    directory = RunDirectory(run).checkpoint(checkpoint)

    def read() -> tuple[dict[str, Tensor], str, dict[str, Any]]:
        files = verify_checkpoint(directory)
        usual = EMA if EMA in files else MODEL
        file = {"model": MODEL, "ema": EMA, None: usual}.get(weights, TASK)
        if file == TASK:
            prefix = _other_weights(card, weights)
        if file not in files:
            raise ValueError(f"{directory} holds no averaged weights; the run was trained without --ema.decay")
        manifest = read_manifest(directory)
        source = {
            "run": run.resolve().name,
            "checkpoint": checkpoint,
            "weights": weights if file == TASK else "ema" if file == EMA else "model",
            "step": int(manifest["step"]),
            "sha256": manifest["files"][file]["sha256"],
        }
        state = read_weights(directory, file)
        if file == TASK:
            state = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
        return state, file, source

    state, file, source = unmoved(directory, read)
    return fill_model(card, state, RunDirectory(run).card_file, directory / file), source


def fill_model(
    card: ModelCard, state: Mapping[str, Tensor], card_file: Path, weights_file: Path, swap: dict[str, Any] | None = None
) -> nn.Module:
    """The model of a card with these weights, in evaluation mode; errors name the files that both come from.

    `swap` is the plan of a swap of norms that came after `create_model`.
    """
    from ..convert.stored import apply_stored_plan
    from ..models.stored_call import build_stored

    try:
        model = build_stored(card.model)
        if swap is not None:
            apply_stored_plan(model, swap)
        if card.fold is not None:
            from ..deploy.fold.stored import folded_structure

            model = folded_structure(model, card.fold, card.input_size)
    except ValueError as error:
        raise ValueError(f"{card_file}: {error}") from error
    model.to(next(tensor.dtype for tensor in state.values() if tensor.is_floating_point()))
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{weights_file} does not fit the model of {card_file}: {error}") from error
    return model.eval()


def _other_weights(card: ModelCard, weights: str | None) -> str:
    """The beginning of the names that these weights have among the task's own."""
    from ..engine.task_state import OWN_PREFIX
    from ..tasks.table import TASKS

    known = TASKS[card.task].other_weights
    if weights is None or weights not in known:
        raise ValueError(f"a run of the task {card.task!r} keeps no weights {weights!r}; that is for self-distillation (dino)")
    return OWN_PREFIX + known[weights]


def load_released(path: str | PathLike[str], arch: str | None = None, norm: str | None = None, **options: Any) -> nn.Module:
    """A released checkpoint file -> a model of ours, in evaluation mode; see `import_released` for the rest.

    The file is read as weights only: a checkpoint that holds code or other objects is refused.
    """
    content = read_foreign(path)
    try:
        return import_released(content, arch, norm, **options)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def read_foreign(path: str | PathLike[str]) -> Any:
    """The content of a file of torch.save, read as weights only."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch raises whatever its unpickler trips over
        raise ValueError(
            f"{path}: not a checkpoint that torch can read as weights only ({type(error).__name__}: {error})"
        ) from error


def read_state(path: str | PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a state dict that torch.save wrote, by itself or in a checkpoint."""
    if Path(path).suffix == ".safetensors":
        return bare_names(_read_safetensors(path))
    content = read_foreign(path)
    while isinstance(content, Mapping) and (inside := [k for k in CONTAINERS if isinstance(content.get(k), Mapping)]):
        content = content[inside[0]]
    if not isinstance(content, Mapping) or not content or not all(isinstance(value, Tensor) for value in content.values()):
        found = f"{', '.join(map(str, list(content)[:5]))}" if isinstance(content, Mapping) else type(content).__name__
        raise ValueError(f"{path} holds no state dict, names to tensors, also not under {', '.join(CONTAINERS)}; found {found}")
    return bare_names(content)


def bare_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without what DistributedDataParallel and torch.compile put in front."""
    return {re.sub(r"^(module\.|_orig_mod\.)+", "", name): tensor for name, tensor in state.items()}


def _read_safetensors(path: str | PathLike[str]) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read as safetensors: {error}") from error
