"""Names to things of one kind: ours, those of a user's own file, and those of installed packages.

    NORMS = Registry("norm", entry_points="dynavit.norms")

    @NORMS.register("mine")
    class Mine(Norm): ...

    NORMS["mine"]          # the class; an unknown name is an error that names the nearest ones

A thing that is not part of this package is a guest. A guest remembers the file it stands in, so that a run can say later which
file it needs. Installed packages offer guests as entry points; one is imported when its name is asked for, never before.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

PACKAGE = __name__.partition(".")[0]

T = TypeVar("T")
Kept = TypeVar("Kept")


class UnknownNameError(ValueError):
    """A name that is not registered, or an option that does not exist."""


def nearest_match_error(kind: str, given: str, known: Iterable[str]) -> UnknownNameError:
    """The error for `given`: the nearest known names first, then all of them."""
    import difflib

    names = sorted(set(known))
    close = difflib.get_close_matches(given.lower(), names, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(repr(name) for name in close)}?" if close else ""
    return UnknownNameError(f"unknown {kind} {given!r}.{hint} Known: {', '.join(names)}")


class Guest(NamedTuple):
    """A registered thing from outside the package.

    Attributes:
        kind: norm, task, data set or model.
        name: under which it is registered.
        file: where it is defined; "" if that is not a file, as in an interactive session.
        sha256: of that file when it was registered; "" likewise.
    """

    kind: str
    name: str
    file: str
    sha256: str


REGISTRIES: "dict[str, Registry[Any]]" = {}  # by kind

_used: ContextVar[dict[tuple[str, str], Guest] | None] = ContextVar("guests in use", default=None)


@contextmanager
def guests_used() -> Iterator[dict[tuple[str, str], Guest]]:
    """Collect the guests that are looked up inside, in any registry: {(kind, name): guest}."""
    found: dict[tuple[str, str], Guest] = {}
    token = _used.set(found)
    try:
        yield found
    finally:
        _used.reset(token)


class Registry(Generic[T]):
    """A table of named things. `built_in` maps names to "module:attribute", imported when first asked for."""

    def __init__(self, kind: str, *, entry_points: str, built_in: Mapping[str, str] | None = None) -> None:
        self.kind, self.entry_points = kind, entry_points
        self._built_in = dict(built_in or {})
        self._things: dict[str, T] = {}
        self._guests: dict[str, Guest] = {}
        REGISTRIES[kind] = self

    def register(self, name: str) -> Callable[[Kept], Kept]:
        """A decorator that registers a class or function under `name`.

        A name is given once. Defining the same thing again, as a notebook does, replaces it; a name of ours or of somebody else
        is refused.
        """

        def keep(thing: Kept) -> Kept:
            if not name or not name.replace("_", "").replace(".", "").isalnum():
                raise ValueError(f"the name of a {self.kind} consists of letters, digits, _ and .; got {name!r}")
            module = getattr(thing, "__module__", "")
            own = module.partition(".")[0] == PACKAGE
            before = self._things.get(name)
            if name in self._built_in or (before is not None and _origin(before) != _origin(thing)):
                who = self._guests[name].file if name in self._guests else PACKAGE
                raise ValueError(
                    f"the {self.kind} {name!r} is registered already, by {who or 'this session'}; choose another name"
                )
            self._things[name] = thing  # type: ignore[assignment]
            if not own:
                self._guests[name] = _guest(self.kind, name, thing)
            return thing

        return keep

    def __getitem__(self, name: str) -> T:
        if name not in self._things:
            self._import(name)
        guest = self._guests.get(name)
        if guest is not None and (used := _used.get()) is not None:
            used[self.kind, name] = guest
        return self._things[name]

    def __contains__(self, name: object) -> bool:
        return name in self._things or name in self._built_in or name in self._offered()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def name_of(self, thing: object) -> str | None:
        """The name that a thing is registered under; None if it is not, or was never asked for."""
        return next((name for name, known in self._things.items() if known is thing), None)

    def names(self) -> list[str]:
        """All names in alphabetical order, also those of installed packages, which are not imported for it."""
        return sorted({*self._things, *self._built_in, *self._offered()})

    def guest(self, name: str) -> Guest | None:
        """The origin of a guest; None for a name of ours, or an unknown one."""
        return self._guests.get(name)

    def _import(self, name: str) -> None:
        if name in self._built_in:
            module, _, attribute = self._built_in[name].partition(":")
            self._things.setdefault(name, getattr(import_module(module), attribute))
            return
        offered = self._offered()
        if name not in offered:
            raise nearest_match_error(self.kind, name, self.names())
        thing = offered[name].load()
        if name not in self._things:  # the module may have registered it itself
            self._things[name] = thing
            self._guests[name] = _guest(self.kind, name, thing)

    def _offered(self) -> dict[str, Any]:
        """Entry points of installed packages. A name of ours cannot be taken over."""
        from importlib.metadata import entry_points

        return {point.name: point for point in entry_points(group=self.entry_points) if point.name not in self._built_in}


def _origin(thing: Any) -> tuple[str, str]:
    return getattr(thing, "__module__", ""), getattr(thing, "__qualname__", repr(thing))


def _guest(kind: str, name: str, thing: Any) -> Guest:
    import hashlib
    import inspect

    try:
        file = Path(inspect.getfile(inspect.unwrap(thing))).resolve()
        return Guest(kind, name, str(file), hashlib.sha256(file.read_bytes()).hexdigest())
    except (TypeError, OSError):  # defined in an interactive session
        return Guest(kind, name, "", "")
