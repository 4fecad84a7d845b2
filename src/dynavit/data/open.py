"""Data sets by name: ours, and those of a user's own file.

Openers are imported when called: digits need neither timm nor torchvision.
"""

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sized
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from ..common.data import Data
from ..common.fits import check_fits
from ..common.registry import Registry, nearest_match_error
from .config import DataConfig
from .configured import configured
from .dataset import DataSet
from .recognise import data_name

Opener = TypeVar("Opener", bound=Callable[..., Data])

DATA: Registry[Callable[..., Any]] = Registry(
    "data set",
    entry_points="dynavit.data",
    built_in={
        "digits": f"{__package__}.digits:open_digits",
        "fashion_mnist": f"{__package__}.fashion_mnist:open_fashion_mnist",
        "cifar10": f"{__package__}.cifar:open_cifar10",
        "cifar100": f"{__package__}.cifar:open_cifar100",
        "folder": f"{__package__}.folder:open_folder",
        "imagenet": f"{__package__}.imagenet:open_imagenet",
        "list": f"{__package__}.lists:open_lists",
        "listops": f"{__package__}.listops.open:open_listops",
        "coco": f"{__package__}.detection.coco:open_coco",
        "detection_folder": f"{__package__}.detection.coco:open_detection_folder",
        "penn_fudan": f"{__package__}.detection.penn_fudan:open_penn_fudan",
        "shapes": f"{__package__}.detection.shapes:open_shapes",
    },
)
SPLITS = ("train", "val", "test")
MEMBERS = ("name", "splits", "notes", "task", "loader", "describe", "subset")  # of common.data.Data


def register_data(name: str) -> Callable[[Opener], Opener]:
    """A decorator for a function that opens a data set; `--data NAME` and `open_data(NAME)` call it.

        @dynavit.register_data("stripes")
        def open_stripes(data_dir: Path | None, config: DataConfig, *, width: int = 2) -> dynavit.DataSet:
            \"""Stripes, upright and lying.\"""        # this line stands in `dynavit list data`
            ...

    Arguments after the star are options of the set: `--loading.options.width 3`. For a `DataSet` of images `open_data` does
    what the rest of `--loading` asks: it cuts a validation split, limits train, changes the size. Any other kind of data set
    has what `dynavit.common.data.Data` names, and sees to `config` itself.
    """
    return DATA.register(name)


def open_data(name: str, data_dir: Path | None = None, config: DataConfig | None = None) -> Any:
    """Open a data set by its name in `list_data()`, or by a scheme string of timm (hfds/..., wds/..., torch/...).

    "auto" looks at what the directory holds.

    Returns:
        a `common.data.Data`; sets of images are a `DataSet`.
    """
    config = config or DataConfig()
    data_dir = Path(data_dir).expanduser() if data_dir is not None else None
    name = data_name(name, data_dir)
    if "/" in name:
        from .timm_scheme import open_scheme

        _check_options(name, open_scheme, config.options)
        return open_scheme(name, data_dir, config)
    opener = DATA[name]
    _check_options(name, opener, config.options)
    data = opener(data_dir, config, **config.options)
    guest = DATA.guest(name)
    if guest is None:
        return data
    _check_members(data, f"the data set {name!r} of {guest.file or 'this session'}")
    return configured(data, config) if isinstance(data, DataSet) else data


def list_data() -> dict[str, str]:
    """Name and one line about each data set: the first line of its opener's docstring."""
    return {name: _about(name) for name in DATA.names()}


def _about(name: str) -> str:
    try:
        opener = DATA[name]
    except Exception as error:  # a package that offers one may fail in any way; the others are listed all the same
        return f"cannot be imported ({type(error).__name__}: {error})"
    return (inspect.getdoc(opener) or "").partition("\n")[0].removesuffix(".")


def _check_options(name: str, opener: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Options are the keyword-only arguments of an opener. Those given must exist and have the annotated type; those without a
    default must be given."""
    own = inspect.signature(opener).parameters.values()
    options = {parameter.name: parameter.default for parameter in own if parameter.kind is parameter.KEYWORD_ONLY}
    unknown = [option for option in given if option not in options]
    if unknown and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in own):
        if not options:
            raise ValueError(f"loading.options: the data set {name} has no options of its own, but got {', '.join(unknown)}")
        raise nearest_match_error(f"option of the data set {name}", unknown[0], options)
    if missing := [option for option, default in options.items() if default is inspect.Parameter.empty and option not in given]:
        raise ValueError(f"the data set {name} needs --loading.options.{missing[0]}")
    if not given:
        return
    try:
        hints = get_type_hints(opener, include_extras=True)
    except (NameError, AttributeError, TypeError):  # a guest may be no plain function, or name types for type checkers only
        return
    for option in given.keys() & options.keys():
        with contextlib.suppress(TypeError):  # a guest's type may be one that `check_fits` does not know
            check_fits(hints.get(option, Any), given[option], f"loading.options.{option}")


def _check_members(data: Any, whose: str) -> None:
    """ValueError if this is not what `common.data.Data` describes."""
    if missing := [member for member in MEMBERS if not hasattr(data, member)]:
        raise ValueError(
            f"{whose}: its opener returned {_a(data)}, which has no {', '.join(missing)}; return a dynavit.DataSet, or an "
            "object with all that dynavit.common.data.Data names"
        )
    splits = data.splits
    if not isinstance(splits, Mapping):
        raise ValueError(f"{whose}: splits is {_a(splits)}; it has to be a dict of splits by name")
    if not set(SPLITS) & set(splits):
        raise ValueError(f"{whose}: splits has {', '.join(map(str, splits)) or 'nothing'}, but none of {', '.join(SPLITS)}")
    for split, samples in splits.items():
        if not isinstance(samples, Sized):
            raise ValueError(f"{whose}: the split {split!r} is {_a(samples)}, which has no length")
        if len(samples) == 0:
            raise ValueError(f"{whose}: the split {split!r} is empty; leave out a split that has no samples")


def _a(thing: object) -> str:
    return "None" if thing is None else f"an object of class {type(thing).__name__}"
