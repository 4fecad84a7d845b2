import copy

import pytest

from dynavit.cli.main import main
from dynavit.common import plugins
from dynavit.common.registry import REGISTRIES


@pytest.fixture(autouse=True)
def no_guest_stays(monkeypatch):
    """Guests of a test are forgotten after it, and those of other tests before it."""
    for registry in REGISTRIES.values():
        guests = set(registry._guests)
        things = {name: thing for name, thing in registry._things.items() if name not in guests}
        monkeypatch.setattr(registry, "_things", things)
        monkeypatch.setattr(registry, "_guests", {})
    monkeypatch.setattr(plugins, "_files", {})
    return copy


@pytest.fixture
def run(capsys):
    """(exit code, stdout, stderr) of one call."""

    def run(*words):
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
