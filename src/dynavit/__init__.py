"""Dynamic vision transformers: layers that learn how to normalise tokens, and models that spend tokens where they matter.

>>> import dynavit
>>> norm = dynavit.create_norm("dtn", 432, heads=9)     # or dynavit.DynamicTokenNorm(432, heads=9)
>>> model = dynavit.create_model("vit_small_star", norm="dtn", num_classes=10, img_size=32, patch_size=4)

The names below are the public door; adding one is a decision with a documentation entry. Each is imported when it is first
used, so that `import dynavit` and `dynavit --help` cost nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .analyse import analyze_runs as analyze_runs
    from .analysis.inside.look import look_inside as look_inside
    from .common.plugins import load_plugin as load_plugin
    from .config import TrainConfig as TrainConfig
    from .convert import plan_swap as plan_swap
    from .convert import swap_norms as swap_norms
    from .deploy.folding import fold as fold
    from .model_files import load as load
    from .model_files import load_released as load_released
    from .models import create_model as create_model
    from .models import import_released as import_released
    from .models import list_models as list_models
    from .norms import DynamicTokenNorm as DynamicTokenNorm
    from .norms import Norm as Norm
    from .norms import create_norm as create_norm
    from .norms import list_norms as list_norms
    from .norms import recalibrate as recalibrate
    from .norms import register_norm as register_norm
    from .robust import evaluate_robust as evaluate_robust
    from .runs import evaluate_run as evaluate_run
    from .runs import train_run as train_run

    __version__: str

# The same names for the interpreter; a test keeps the two lists equal.
_HOMES = {
    "DynamicTokenNorm": ".norms",
    "Norm": ".norms",
    "TrainConfig": ".config",
    "analyze_runs": ".analyse",
    "create_model": ".models",
    "create_norm": ".norms",
    "evaluate_robust": ".robust",
    "evaluate_run": ".runs",
    "fold": ".deploy.folding",
    "import_released": ".models",
    "list_models": ".models",
    "list_norms": ".norms",
    "load": ".model_files",
    "load_plugin": ".common.plugins",
    "load_released": ".model_files",
    "look_inside": ".analysis.inside.look",
    "plan_swap": ".convert",
    "recalibrate": ".norms",
    "register_norm": ".norms",
    "swap_norms": ".convert",
    "train_run": ".runs",
}

__all__ = [
    "DynamicTokenNorm",
    "Norm",
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
    "look_inside",
    "plan_swap",
    "recalibrate",
    "register_norm",
    "swap_norms",
    "train_run",
]


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
