"""The network, asked first: without one, libraries try again and again for a minute before they say so."""

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

SECONDS = 5.0


def require_network(address: str, what: str) -> None:
    """ValueError at once if nothing answers at an address, through the proxy of the environment if there is one."""
    request = urllib.request.Request(address, method="HEAD")
    try:
        urllib.request.build_opener().open(request, timeout=SECONDS).close()
    except urllib.error.HTTPError:
        return  # an answer, though not a welcome one
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise ValueError(
            f"{what} cannot be fetched: no network, or nothing answers at {urlsplit(address).hostname} ({reason})"
        ) from error


@contextmanager
def offline_hub(*more: str) -> Iterator[None]:
    """Inside, Hugging Face's libraries take what is on this machine. They read the setting from the environment while they are
    imported, so it is set where they keep it: in `huggingface_hub.constants`, and in the modules that `more` names."""
    places: list[Any] = [import_module(name) for name in ("huggingface_hub.constants", *more)]
    before = [place.HF_HUB_OFFLINE for place in places]
    for place in places:
        place.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value


def hub_address() -> str:
    """Where Hugging Face's libraries look."""
    return str(import_module("huggingface_hub.constants").ENDPOINT)
