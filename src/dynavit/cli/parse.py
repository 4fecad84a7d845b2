"""From words on the command line to the keyword arguments of a function, through jsonargparse.

A parameter is an option. A parameter without default whose type is a dataclass gives an option for each of its fields; fields
that are dataclasses again are dotted: `--optim.clip 1`.
"""

import argparse
import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, get_type_hints

from ..common.fits import check_fits
from ..common.registry import nearest_match_error
from ..runs.config import from_plain
from .recipes import config_file

_OWN_OPTIONS = ("config", "help", "plugin", "print_config")
# Everyday options that live in a group.
_SHORT = {"strict": "loading.strict", "download": "loading.download"}


def positional(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Mark parameters that are given by words before the options; a name with "..." takes all words that are left."""

    def mark(function: Callable[..., None]) -> Callable[..., None]:
        function.positional = names  # type: ignore[attr-defined]
        return function

    return mark


def take_plugins(words: Sequence[str]) -> list[str]:
    """Load the files that `--plugin` names and return the other words. First of all: names may be theirs."""
    rest, files = [], []
    waiting = False
    for word in words:
        if waiting:
            files.append(word)
            waiting = False
        elif word == "--plugin":
            waiting = True
        elif word.startswith("--plugin="):
            files.append(word.partition("=")[2])
        else:
            rest.append(word)
    if waiting or not all(files):
        raise ValueError("--plugin needs a file: --plugin my_norm.py; several: --plugin a.py --plugin b.py")
    if files:
        from ..common.plugins import load_plugin

        for file in files:
            load_plugin(file)
    return rest


def parse_options(function: Callable[..., None], words: Sequence[str], prog: str) -> dict[str, Any] | None:
    """The keyword arguments for `function`; None if the answer was printed already (--help, --print_config).

    Raises:
        ValueError: an option that does not exist or a value that does not fit, in one line.
    """
    from jsonargparse import ArgumentParser

    from .help import Help

    types = _option_types(function)
    words = getattr(function, "prepare", list)(words)  # a command may know more about its words
    words = _normal_spelling(_named(words, function, prog), types)
    _check_names(words, [*types, *_OWN_OPTIONS])
    words = _meant(words, types)
    parser = ArgumentParser(
        prog=prog,
        usage=_usage(function, prog),
        description=_prose(function),
        epilog=_task_help() if "task_options" in types and {"-h", "--help"} & set(words) else None,
        exit_on_error=False,
        allow_abbrev=False,  # an abbreviation breaks when an option is added
        formatter_class=Help,
    )
    parser.add_argument(
        "--config",
        action="config",
        help="a recipe (`dynavit list recipes`) or a YAML file with any of these options; the command line wins",
    )
    parser.add_argument(
        "--plugin", metavar="FILE.py", help="a file that registers norms, tasks, data sets or models of your own; repeatable"
    )
    flat = _flat_parameters(function)
    parser.add_function_arguments(function, as_group=False, skip=set(flat))
    for kind in flat.values():
        parser.add_class_arguments(kind, as_group=False)
    try:
        parsed = parser.parse_args(words)
    except SystemExit as stop:
        if stop.code:
            raise ValueError(f"{prog}: cannot understand {' '.join(words)!r}") from stop
        return None
    except argparse.ArgumentError as error:
        stray = re.match(r"unrecognized arguments: (?!-)(\S+)", str(error), re.IGNORECASE)
        if stray:
            raise ValueError(f"{prog}: got {stray[1]!r} behind an option. Usage: {_usage(function, prog)}") from error
        raise ValueError(_one_line(error, prog, list(types))) from error
    if parsed.plugin is not None:  # words that name one are taken out before
        raise ValueError("a configuration file names no plug-ins, for it must not run code: give --plugin FILE.py beside it")
    options = {name: parsed[name] for name in inspect.signature(function).parameters if name not in flat}
    for name, hint in get_type_hints(function, include_extras=True).items():
        if name in options and options[name] != inspect.signature(function).parameters[name].default:
            check_fits(hint, options[name], f"--{name}")
    for name, kind in flat.items():
        options[name] = from_plain(kind, {f.name: _as_dict(parsed[f.name]) for f in dataclasses.fields(kind)})
    return options


def _task_help() -> str:
    """Options of all tasks that have any."""
    from ..tasks.table import options_of_tasks

    lines = []
    for name, kind in options_of_tasks().items():
        about = attribute_docs(kind)
        lines.append(f"options of the task {name}:")
        for field in dataclasses.fields(kind):
            default = f" (default: {field.default})" if field.default not in (None, dataclasses.MISSING) else ""
            lines.append(f"  --task.{field.name}  {about.get(field.name, '')}{default}")
    return "\n".join(lines)


def attribute_docs(kind: type) -> dict[str, str]:
    """Field name to its line under "Attributes:" in the docstring of a dataclass."""
    from docstring_parser import parse

    return {each.arg_name: " ".join((each.description or "").split()) for each in parse(kind.__doc__ or "").params}


def _as_dict(value: Any) -> Any:
    return value.as_dict() if hasattr(value, "as_dict") else value  # jsonargparse's Namespace


def first_line(function: Callable[..., Any]) -> str:
    """The first line of a docstring: its summary."""
    return (inspect.getdoc(function) or "").partition("\n")[0]


def _prose(function: Callable[..., Any]) -> str:
    """The docstring without its list of arguments, which the options repeat."""
    return (inspect.getdoc(function) or "").partition("\nArgs:")[0].strip()


def _usage(function: Callable[..., Any], prog: str) -> str:
    words = [name.removesuffix("...").upper() + ("..." if name.endswith("...") else "") for name in _positional(function)]
    return " ".join([prog, *words, "[options]"])


def _positional(function: Callable[..., Any]) -> tuple[str, ...]:
    return getattr(function, "positional", ())


def _flat_parameters(function: Callable[..., Any]) -> dict[str, Any]:
    """Parameters whose fields are options themselves."""
    return {
        name: parameter.annotation
        for name, parameter in inspect.signature(function).parameters.items()
        if dataclasses.is_dataclass(parameter.annotation) and parameter.default is inspect.Parameter.empty
    }


def _option_types(function: Callable[..., Any]) -> dict[str, Any]:
    """Every option with its type; fields of groups are dotted. Ranges are left out."""
    types: dict[str, Any] = {}
    flat = _flat_parameters(function)
    for name, hint in get_type_hints(function).items():
        if name in flat:
            types |= _field_types(hint)
        elif name != "return":
            types[name] = hint
    return types


def _field_types(kind: Any, prefix: str = "") -> dict[str, Any]:
    types: dict[str, Any] = {}
    hints = get_type_hints(kind)
    for f in dataclasses.fields(kind):
        types[prefix + f.name] = hints[f.name]
        if dataclasses.is_dataclass(hints[f.name]):
            types |= _field_types(hints[f.name], f"{prefix}{f.name}.")
    return types


def _named(words: Sequence[str], function: Callable[..., Any], prog: str) -> list[str]:
    """Leading words as the options they stand for."""
    first_option = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    given, rest = list(words[:first_option]), list(words[first_option:])
    named = []
    for name in _positional(function):
        if name.endswith("..."):
            if given:
                named.append(f"--{name.removesuffix('...')}={json.dumps(given)}")
            given = []
        elif given:
            named.append(f"--{name}={given.pop(0)}")
    if given:
        raise ValueError(f"{prog}: options start with --, got {given[0]!r}. Usage: {_usage(function, prog)}")
    return named + rest


def _normal_spelling(words: Sequence[str], types: dict[str, Any]) -> list[str]:
    """Dashes become underscores, `--flag` means true and `--no-flag` false, `--print_config` goes last to see all."""
    flags = {name for name, kind in types.items() if kind in (bool, bool | None)}
    spelled: list[str] = []
    last: list[str] = []
    for index, word in enumerate(words):
        if not word.startswith("--"):
            spelled.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        bare = not equals and (index + 1 == len(words) or words[index + 1].lower() not in ("true", "false"))
        negated = name.startswith("no_") and name not in types
        own = name.removeprefix("no_") if negated else name
        if own not in types and _SHORT.get(own) in types:
            own = name = _SHORT[own]
        if name.startswith("task.") and "task_options" in types:
            name = f"task_options.{name.removeprefix('task.')}"
        switch = bare and own in flags
        word = f"--{own}={'false' if negated else 'true'}" if switch else f"--{name}{equals}{value}"
        (last if name == "print_config" else spelled).append(word)
    return spelled + last


def _check_names(words: Sequence[str], known: Sequence[str]) -> None:
    """Unknown options, with the nearest that exist. Fields below a dict (`--model_options.depth=3`) are free."""
    for word in words:
        name = re.split(r"[=+]", word[2:], maxsplit=1)[0]  # `--norms+=ln` adds to a list
        if not word.startswith("--") or name in known:
            continue
        group, dot, _ = name.rpartition(".")
        if dot and group in known and not any(other.startswith(f"{group}.") for other in known):
            continue
        raise nearest_match_error("option", name, [name for name in known if name != "help"])


def _meant(words: Sequence[str], types: dict[str, Any]) -> list[str]:
    """Values as what they mean: a recipe's name its file, `0,1,2` a list of numbers."""
    meaning: dict[str, Callable[[str], str]] = {"--config": _config}
    for name, kind in types.items():
        if kind in (list[int], list[float] | None):
            meaning[f"--{name}"] = lambda value: value if value.startswith("[") else f"[{value}]"
    meant: list[str] = []
    for word in words:
        option, equals, value = word.partition("=")
        if equals and option in meaning:
            word = f"{option}={meaning[option](value)}"
        elif meant and meant[-1] in meaning:
            word = meaning[meant[-1]](word)
        meant.append(word)
    return meant


def _config(value: str) -> str:
    """The file of a recipe's name; options that are given as JSON stay."""
    return value if value.startswith("{") else str(config_file(value))


def _one_line(error: Exception, prog: str, known: Sequence[str]) -> str:
    """jsonargparse's message on one line; the nearest option where a --config file names one that does not exist."""
    from .help import plain_type

    message = " ".join(str(error).split())
    unknown = re.search(r"(?:Option|Key) '([\w.]+)'", message)
    if unknown and unknown[1] not in known:
        return str(nearest_match_error("option", unknown[1], [name for name in known if name not in _OWN_OPTIONS]))
    message = re.sub(r'Parser key "([\w.]+)":', r"--\1:", message)
    return f"{plain_type(message)} (see {prog} --help)"
