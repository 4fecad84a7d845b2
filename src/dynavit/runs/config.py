"""Every option of `dynavit train`, and how options are written to files and read back.

Nothing here imports torch, so that the command line can explain itself at once.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from ..common.fits import AtLeastOne, Positive, Seed, check_fits
from ..common.registry import nearest_match_error
from ..data.config import AugmentConfig, DataConfig
from ..engine.config import EmaConfig, EngineConfig, Epochs, OptimConfig, TrainPlan
from .directory import RunDirectory

T = TypeVar("T")


@dataclass
class TrainConfig:
    """One training run. `dynavit train` has an option for each field, dotted for fields of fields.

    Attributes:
        model: a name of `dynavit list models`, or any name of timm; auto takes a small one that fits the data.
        norm: a name of `dynavit list norms`; what the model comes with if not given.
        data: digits (built in), fashion_mnist, cifar10, cifar100, folder, imagenet, list, listops, coco, detection_folder,
            penn_fudan, shapes (`dynavit list data`), or timm's scheme/name; auto takes what lies in data_dir, and digits
            without one.
        data_dir: where the data set lies; digits, listops and shapes need none.
        epochs: passes over the training images; fractions work.
        batch_size: images per step, over all processes.
        lr: largest learning rate.
        seed: of weights, order and augmentation.
        init_from: start from these weights: a run, a .safetensors or .pth file, a release's checkpoint, or timm:NAME.
        init_partial: with init_from: take what fits and name the rest, instead of refusing weights of another architecture.
        task: a name of `dynavit list tasks`; the one that fits model and data if not given.
        task_options: options of the task, written --task.NAME.
        model_options: what else the model takes, as in `create_model`.
        norm_options: options of the norm.
        loading: how data are opened.
        augment: what is done to training images.
        optim: the optimiser and its schedule.
        ema: the running average of weights.
        engine: the machine and the bookkeeping.
    """

    model: str = "auto"
    norm: str | None = None
    data: str = "auto"
    data_dir: Path | None = None
    epochs: Epochs = 20
    batch_size: AtLeastOne = 64
    lr: Positive = 1e-3
    seed: Seed = 0
    init_from: str | None = None
    init_partial: bool = False
    task: str | None = None
    task_options: dict[str, Any] = field(default_factory=dict)
    model_options: dict[str, Any] = field(default_factory=dict)
    norm_options: dict[str, Any] = field(default_factory=dict)
    loading: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    ema: EmaConfig = field(default_factory=EmaConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)

    def __post_init__(self) -> None:
        check_fits(type(self), self)

    @property
    def plan(self) -> TrainPlan:
        """The part of it that concerns the training loop."""
        return TrainPlan(self.epochs, self.lr, self.seed, self.optim, self.ema, self.engine)


def stored_config(run: RunDirectory) -> TrainConfig:
    """The options that a run was begun with; younger options have their defaults."""
    try:
        return from_plain(TrainConfig, upgraded(run.read_config()))
    except ValueError as error:
        raise ValueError(f"{run.config_file}: {error}") from error


def upgraded(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Stored options in today's form. Until 0.1 the weights of a cascade's losses were an option of every run."""
    plain = dict(plain)
    weights = plain.pop("exit_weights", None)
    if weights is not None:
        plain["task_options"] = {**plain.get("task_options", {}), "weights": weights}
    return plain


def to_plain(config: Any) -> dict[str, Any]:
    """A configuration as nested dicts of numbers and strings, fit for YAML."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}


def from_plain(kind: type[T], plain: Mapping[str, Any], where: str = "") -> T:
    """The dataclass that `to_plain` was made from. Missing fields get their defaults, unknown ones are errors."""
    hints = get_type_hints(kind)
    values = {}
    for name, value in plain.items():
        if name not in hints:
            raise nearest_match_error("option", f"{where}{name}", [f"{where}{known}" for known in hints])
        values[name] = _typed(hints[name], value, f"{where}{name}.")
    made = kind(**values)
    check_fits(kind, made, where.removesuffix("."))
    return made


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_plain(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _typed(hint: Any, value: Any, where: str) -> Any:
    """The value as its type, where that is clear; `check_fits` finds the others."""
    if value is None:
        return None
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return from_plain(hint, value, where)  # type: ignore[arg-type]
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if Path in options and isinstance(value, str):
        return Path(value)
    items = next((get_args(option)[0] for option in options if get_origin(option) is list), None)
    if items is not None and isinstance(value, str):  # 1,2,3 on a command line
        value = [word.strip() for word in value.strip("[]").split(",") if word.strip()]
    if items in (int, float) and isinstance(value, list):
        return [_number(items, item) for item in value]
    if float in options and isinstance(value, str | int) and not isinstance(value, bool):
        return _number(float, value)  # YAML reads 5e-4 as a string
    return tuple(value) if get_origin(hint) is tuple and isinstance(value, list) else value


def _number(kind: type, value: Any) -> Any:
    try:
        return kind(value) if isinstance(value, str | int) and not isinstance(value, bool) else value
    except (ValueError, OverflowError):
        return value
