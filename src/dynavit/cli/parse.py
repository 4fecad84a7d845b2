"""From words on the command line to the keyword arguments of a function, through jsonargparse."""

import argparse
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

from ..common.registry import nearest_match_error

_OWN_OPTIONS = ("config", "help", "print_config")


def parse_options(function: Callable[..., None], words: Sequence[str], prog: str) -> dict[str, Any] | None:
    """The keyword arguments for `function`; None if the answer was printed already (--help, --print_config).

    Raises:
        ValueError: an option that does not exist or a value that does not fit, in one line.
    """
    from jsonargparse import ArgumentParser, DefaultHelpFormatter

    class Help(DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
        """Types and defaults of options from the one, the docstring's own line breaks from the other."""

    parameters = inspect.signature(function).parameters
    known = [*parameters, *_OWN_OPTIONS]
    words = _normal_spelling(words, flags={name for name, p in parameters.items() if p.annotation is bool})
    _check_names(words, known)
    parser = ArgumentParser(
        prog=prog,
        description=_prose(function),
        exit_on_error=False,
        allow_abbrev=False,  # an abbreviation breaks when an option is added
        formatter_class=Help,
    )
    parser.add_argument("--config", action="config", help="a YAML file with any of these options; the command line wins")
    parser.add_function_arguments(function, as_group=False)
    try:
        options = parser.parse_args(words)
    except SystemExit as stop:
        if stop.code:
            raise ValueError(f"{prog}: cannot understand {' '.join(words)!r}") from stop
        return None
    except argparse.ArgumentError as error:
        raise ValueError(_one_line(error, prog, known)) from error
    return {name: options[name] for name in parameters}


def first_line(function: Callable[..., Any]) -> str:
    """The first line of a docstring: its summary."""
    return (inspect.getdoc(function) or "").partition("\n")[0]


def _prose(function: Callable[..., Any]) -> str:
    """The docstring without its list of arguments, which the options repeat."""
    return (inspect.getdoc(function) or "").partition("\nArgs:")[0].strip()


def _normal_spelling(words: Sequence[str], flags: set[str]) -> list[str]:
    """Dashes become underscores, `--flag` means true and `--no-flag` false, `--print_config` goes last to see all."""
    spelled: list[str] = []
    last: list[str] = []
    for index, word in enumerate(words):
        if not word.startswith("--"):
            spelled.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        bare = not equals and (index + 1 == len(words) or words[index + 1].lower() not in ("true", "false"))
        if bare and name in flags:
            word = f"--{name}=true"
        elif bare and name.removeprefix("no_") in flags:
            word = f"--{name.removeprefix('no_')}=false"
        else:
            word = f"--{name}{equals}{value}"
        (last if name == "print_config" else spelled).append(word)
    return spelled + last


def _check_names(words: Sequence[str], known: Sequence[str]) -> None:
    for word in words:
        # `--model.depth=3` sets a field of an option, `--norms+=ln` adds to a list
        name = re.split(r"[.=+]", word[2:], maxsplit=1)[0]
        if word.startswith("--") and name not in known:
            raise nearest_match_error("option", name, [name for name in known if name != "help"])


def _one_line(error: Exception, prog: str, known: Sequence[str]) -> str:
    """jsonargparse's message on one line; the nearest option where a --config file names one that does not exist."""
    message = " ".join(str(error).split())
    unknown = re.search(r"(?:Option|Key) '([\w.]+)'", message)
    if unknown and unknown[1] not in known:
        return str(nearest_match_error("option", unknown[1], [name for name in known if name not in _OWN_OPTIONS]))
    message = re.sub(r'Parser key "([\w.]+)":', r"--\1:", message)
    message = re.sub(r"<class '(\w+)'>", r"\1", message)
    return f"{message} (see {prog} --help)"
