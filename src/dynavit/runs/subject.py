"""The subject of a verb: a run, its weights, the data they are asked about, the device.

Nothing at the top imports torch: the command line shows the fields of `Which` as options of every command.
"""

from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from .directory import CheckpointName, RunDirectory, WeightsName

if TYPE_CHECKING:
    from torch import nn

    from ..common.data import Data
    from ..data.config import DataConfig
    from ..models.cascade.policy import ExitPolicy
    from .config import TrainConfig
    from .model_files import ModelCard
    from .opened import Opened


@dataclass
class Which:
    """A choice of weights, data and device: the same options for every command.

    Attributes:
        checkpoint: the end of the training, or where validation was best.
        weights: the trained ones or their average; the average if the run kept one. student: of self-distillation, where the
            trained ones are the teacher's.
        data: another data set with as many classes; the run's own if not given.
        data_dir: where the data set lies; as in the run if not given.
        device: cpu, cuda, mps; the best there is if not given.
        strict: stop at an image that cannot be read, instead of leaving it out.
    """

    checkpoint: CheckpointName = "last"
    weights: WeightsName | None = None
    data: str | None = None
    data_dir: Path | None = None
    device: str | None = None
    strict: bool = False


class WhichOptions(TypedDict, total=False):
    """The fields of `Which` as keyword arguments of a verb."""

    checkpoint: CheckpointName
    weights: WeightsName | None
    data: "str | Data | None"
    data_dir: Path | None
    device: str | None
    strict: bool


@dataclass(kw_only=True)
class Subject(Which):
    """A run, and which of its weights on which data.

    Attributes:
        opened_data: a data set that is open already, in place of the one that `data` names.
        any_classes: the data may have other classes than the model tells apart, because only its features are asked for.
    """

    run: Path
    opened_data: "Data | None" = None
    any_classes: bool = False

    keeps_results: ClassVar[bool] = True  # in its directory

    @classmethod
    def of(cls, run: "str | PathLike[str] | Subject", options: "Which | WhichOptions | None" = None) -> "Subject":
        """From a path and the keyword arguments of a verb, whose `data` may also be a data set that is open already."""
        if isinstance(run, Subject):
            return run
        given: dict[str, Any] = vars(options) if isinstance(options, Which) else dict(options or {})
        opened = None if given.get("data") is None or isinstance(given["data"], str) else given.pop("data")
        return cls(run=Path(run), opened_data=opened, **given)

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory(self.run)

    @property
    def is_usual(self) -> bool:
        """Whether these are the weights that are taken by default; stored thresholds were found for them."""
        return self.checkpoint == "last" and self.weights is None

    def policy(self) -> "ExitPolicy | None":
        """Stored thresholds of a cascade; None if there are none, or these are other weights than they were found for."""
        from .calibrate import read_policy

        return read_policy(self.run) if self.is_usual and self.directory.policy_file.is_file() else None

    def load(self) -> "tuple[nn.Module, ModelCard, dict[str, Any]]":
        """The model in evaluation mode, the card that describes it, and where its weights come from."""
        from .model_files import ModelCard, load_with_source

        model, source = load_with_source(self.run, self.checkpoint, self.weights)
        return model, ModelCard.read(self.run), source

    def config(self) -> "TrainConfig":
        """The options of its training: they say on which data, and on which machine."""
        from .config import stored_config

        return stored_config(self.directory)

    def fitted(self, data: "Data", card: "ModelCard") -> "Data":
        """Data as the model knows them; one that gives features, without outputs for classes, takes any classes."""
        facts = card.facts
        if self.any_classes or card.model.get("num_classes") == 0:
            facts.pop("classes", None)
        return data.prepared_as(facts, self.run)

    def open(self, data: "Data | None" = None, loading: "DataConfig | None" = None) -> "Opened":
        """The model with the data set it was trained on, or with another one that has as many classes."""
        from ..data.open import open_data
        from ..engine.processes import Processes
        from .assemble import build_task
        from .opened import Opened

        model, card, source = self.load()
        card.require_guests(self.run, "task")
        config = self.config()
        if loading is None:
            loading = replace(config.loading, download=False)  # the run's owner asked for that, the caller did not
        loading = replace(loading, strict=self.strict or loading.strict)
        data = data if data is not None else self.opened_data
        if data is None:
            own = self.data in (None, config.data)
            if own:
                card.require_guests(self.run, "data set")
            else:
                loading = replace(loading, options={})  # those are of the run's own data set
            data = open_data(self.data or config.data, self.data_dir or (config.data_dir if own else None), loading)
        data = self.fitted(data, card)
        config.engine.device = self.device
        processes = Processes(config.engine)
        model = model.to(processes.device, processes.dtype)
        task = build_task(card.task, model, data, card.task_options).eval()
        return Opened(self, model, task, card, source, config, data, loading, processes)
