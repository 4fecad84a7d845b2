"""Dynamic vision transformers: layers that learn how to normalise tokens, and models that spend tokens where they matter.

>>> import dynavit
>>> norm = dynavit.create_norm("dtn", 432, heads=9)     # or dynavit.DynamicTokenNorm(432, heads=9)
>>> model = dynavit.create_model("vit_small_star", norm="dtn", num_classes=10, img_size=32, patch_size=4)

The names below are the public door; adding one is a decision with a documentation entry. Each is imported when it is first
used, so that `import dynavit` and `dynavit --help` cost nothing.
"""

from typing import TYPE_CHECKING, Any

from dynavit.common.torchvision_hook import install_torchvision_hook as _install_torchvision_hook

if TYPE_CHECKING:
    from .analysis.inside.look import look_inside as look_inside
    from .common.batch import Batch as Batch
    from .common.metric import Metric as Metric
    from .common.plugins import load_plugin as load_plugin
    from .common.task import Evaluator as Evaluator
    from .common.task import Task as Task
    from .convert import load_swapped as load_swapped
    from .convert import plan_swap as plan_swap
    from .convert import save_swapped as save_swapped
    from .convert import swap_norms as swap_norms
    from .data.dataset import DataSet as DataSet
    from .data.dataset import MemorySplit as MemorySplit
    from .data.open import register_data as register_data
    from .deploy.fold.folding import fold as fold
    from .engine.optimiser import parameter_groups as parameter_groups
    from .models import create_model as create_model
    from .models import import_released as import_released
    from .models import list_models as list_models
    from .models import register_model as register_model
    from .norms import DynamicTokenNorm as DynamicTokenNorm
    from .norms import Norm as Norm
    from .norms import create_norm as create_norm
    from .norms import list_norms as list_norms
    from .norms import recalibrate as recalibrate
    from .norms import register_norm as register_norm
    from .runs.analyze import analyze_runs as analyze_runs
    from .runs.config import TrainConfig as TrainConfig
    from .runs.evaluate import evaluate_run as evaluate_run
    from .runs.hub import push_to_hub as push_to_hub
    from .runs.model_files import load as load
    from .runs.model_files import load_released as load_released
    from .runs.probe import probe_run as probe_run
    from .runs.repository import save_pretrained as save_pretrained
    from .runs.robustness import evaluate_robust as evaluate_robust
    from .runs.serve import serve as serve
    from .runs.train import train_run as train_run
    from .tasks.image import ImageTask as ImageTask
    from .tasks.table import register_task as register_task

    __version__: str

# The same names for the interpreter; a test keeps the two lists equal.
_HOMES = {
    "Batch": ".common.batch",
    "DataSet": ".data.dataset",
    "DynamicTokenNorm": ".norms",
    "Evaluator": ".common.task",
    "ImageTask": ".tasks.image",
    "MemorySplit": ".data.dataset",
    "Metric": ".common.metric",
    "Norm": ".norms",
    "Task": ".common.task",
    "TrainConfig": ".runs.config",
    "analyze_runs": ".runs.analyze",
    "create_model": ".models",
    "create_norm": ".norms",
    "evaluate_robust": ".runs.robustness",
    "evaluate_run": ".runs.evaluate",
    "fold": ".deploy.fold.folding",
    "import_released": ".models",
    "list_models": ".models",
    "list_norms": ".norms",
    "load": ".runs.model_files",
    "load_plugin": ".common.plugins",
    "load_released": ".runs.model_files",
    "load_swapped": ".convert",
    "look_inside": ".analysis.inside.look",
    "parameter_groups": ".engine.optimiser",
    "plan_swap": ".convert",
    "probe_run": ".runs.probe",
    "push_to_hub": ".runs.hub",
    "recalibrate": ".norms",
    "register_data": ".data.open",
    "register_model": ".models",
    "register_norm": ".norms",
    "register_task": ".tasks.table",
    "save_pretrained": ".runs.repository",
    "save_swapped": ".convert",
    "serve": ".runs.serve",
    "swap_norms": ".convert",
    "train_run": ".runs.train",
}

__all__ = [
    "Batch",
    "DataSet",
    "DynamicTokenNorm",
    "Evaluator",
    "ImageTask",
    "MemorySplit",
    "Metric",
    "Norm",
    "Task",
    "TrainConfig",
    "__version__",
    "analyze_runs",
    "create_model",
    "create_norm",
    "evaluate_robust",
    "evaluate_run",
    "fold",
    "import_released",
    "list_models",
    "list_norms",
    "load",
    "load_plugin",
    "load_released",
    "load_swapped",
    "look_inside",
    "parameter_groups",
    "plan_swap",
    "probe_run",
    "push_to_hub",
    "recalibrate",
    "register_data",
    "register_model",
    "register_norm",
    "register_task",
    "save_pretrained",
    "save_swapped",
    "serve",
    "swap_norms",
    "train_run",
]


_install_torchvision_hook()  # so that timm can be imported after this package, wherever torchvision does not fit torch


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("dynavit")
    elif name in _HOMES:
        from importlib import import_module

        value = getattr(import_module(_HOMES[name], __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # from now on an ordinary attribute
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
