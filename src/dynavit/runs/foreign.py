"""Models that are no run and can be asked all the same: bundles, pretrained models of timm, files of weights.

    asked_of("runs/x-onnx")                                     a bundle of `dynavit export`
    asked_of("timm:deit_tiny_patch16_224")                      a model of timm with its published weights
    asked_of("deit.safetensors", model="deit_tiny_patch16_224")  a file of weights, and the model they belong to

They hold no data set and keep no results. Nothing at the top imports torch.
"""

from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from ..deploy.bundle.manifest import is_bundle, read_manifest
from .directory import RunDirectory
from .subject import Subject, Which, WhichOptions

if TYPE_CHECKING:
    from torch import nn

    from ..common.data import Data
    from ..data.config import DataConfig
    from .config import TrainConfig
    from .model_files import ModelCard
    from .opened import Opened

TIMM = "timm:"


def asked_of(
    asked: str | PathLike[str] | Subject,
    options: Which | WhichOptions | None = None,
    *,
    model: str | None = None,
    trust_pt2: bool = False,
) -> Subject:
    """A run, a bundle, timm:NAME or a file of weights as the subject of a verb that only asks its model.

    Args:
        model: for a file of weights: the name of the model they belong to.
        trust_pt2: open a .pt2 bundle, which can run any code of the one who made it.
    """
    subject = Subject.of(asked, options)
    if type(subject) is not Subject:
        return subject
    if str(asked).startswith(TIMM) or subject.run.is_file():
        return WeightsSubject(**vars(subject), model=model)
    if model is not None:
        raise ValueError(f"{subject.run} knows its model; --model is for files of weights")
    return BundleSubject(**vars(subject), trust_pt2=trust_pt2) if is_bundle(subject.run) else subject


@dataclass(kw_only=True)
class Foreign(Subject):
    """Something other than a run; `kind` says what."""

    kind = "no run"
    keeps_results = False

    def __post_init__(self) -> None:
        if not self.is_usual:
            raise ValueError(f"{self.run} is {self.kind}: one set of weights; leave --checkpoint and --weights out")

    @property
    def directory(self) -> RunDirectory:
        raise ValueError(f"{self.run} is {self.kind}, which keeps no results and no options of a run")

    def policy(self) -> None:
        return None

    def config(self) -> "TrainConfig":
        from .config import TrainConfig

        return TrainConfig()

    def open(self, data: "Data | None" = None, loading: "DataConfig | None" = None) -> "Opened":
        if self.data is None and self.data_dir is not None:
            self.data = "auto"
        if data is None and self.opened_data is None and self.data is None:
            raise ValueError(f"{self.run} is {self.kind}, which has no data set; say --data folder --data-dir PHOTOS")
        return super().open(data, loading)


@dataclass(kw_only=True)
class BundleSubject(Foreign):
    """A bundle of `dynavit export`, with the preparation of images it carries."""

    trust_pt2: bool = False
    kind = "a bundle"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device not in (None, "cpu"):
            raise ValueError(f"{self.run} is a bundle, which runs on the CPU; leave --device out")
        self.device = "cpu"

    def load(self) -> "tuple[nn.Module, ModelCard, dict[str, Any]]":
        from .model_files import ModelCard, load

        model, manifest = load(self.run, trust_pt2=self.trust_pt2), read_manifest(self.run)
        facts = {"task": manifest.get("task", ""), "data": {"name": None}}  # older bundles leave the task to the model
        card = ModelCard(manifest["model"], manifest["classes"], manifest["preprocess"], **facts)
        return model, card, manifest["source"]


@dataclass(kw_only=True)
class WeightsSubject(Foreign):
    """Published weights of timm, or a file of weights. A thousand classes are ImageNet's, and data are matched to them."""

    model: str | None = None
    kind = "a set of weights"

    def load(self) -> "tuple[nn.Module, ModelCard, dict[str, Any]]":
        from .model_files import ModelCard
        from .preparation import of_pretrained_config
        from .pretrained import class_names, pretrained_model

        name, model = pretrained_model(str(self.run), self.model)
        facts = of_pretrained_config(getattr(model, "pretrained_cfg", None) or {})
        facts.pop("crop_mode", None)
        if missing := {"image_size", "mean", "std", "crop_pct", "interpolation"} - facts.keys():
            raise ValueError(f"{self.run}: the model {name} does not say how its images are prepared ({', '.join(missing)})")
        classes = class_names(int(model.num_classes))  # type: ignore[arg-type]
        card = ModelCard({"name": name}, classes, {"kind": "files", **facts}, {"name": None})
        source = {"run": str(self.run), "checkpoint": self.checkpoint, "weights": "model", "step": 0, "sha256": None}
        return model.eval(), card, source

    def fitted(self, data: "Data", card: "ModelCard") -> "Data":
        from ..data.dataset import DataSet
        from ..data.imagenet_labels import IMAGENET_CLASSES, with_imagenet_labels

        if isinstance(data, DataSet) and len(card.classes) == IMAGENET_CLASSES and not self.any_classes:
            data = with_imagenet_labels(data, self.run)
        return super().fitted(data, card)
