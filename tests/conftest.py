"""Shared fixtures, and the rule about skipped tests in CI."""

import os
import sys
from pathlib import Path

import pytest

from skip_rule import ALLOWED, SHARED, SkipRule


def pytest_configure(config: pytest.Config) -> None:
    in_worker = hasattr(config, "workerinput")  # xdist; the rule lives where the reports arrive
    if os.environ.get("CI") == "true" and not in_worker:
        # As a plugin of its own: hooks of a conftest are not called for the doctests under src.
        config.pluginmanager.register(SkipRule(SHARED), "skip_rule")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest file goes first: processes take whole files, and one that begins last would keep the others waiting."""
    items.sort(key=lambda item: item.path.name != "test_snippets.py")


@pytest.fixture(scope="session")
def shared_golden() -> Path:
    """The directory of numbers produced by running the released code; a checkout without it skips the test."""
    golden = SHARED / "golden"
    if not golden.is_dir():
        pytest.skip(f"{ALLOWED}/golden, which is not part of the repository")
    return golden


@pytest.fixture
def no_guest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guests of a test are forgotten after it, and those of other tests before it."""
    import dynavit.data.open
    import dynavit.models
    import dynavit.tasks.table  # noqa: F401  all registries are there now, and timm is imported
    from dynavit.common import plugins, registry

    for table in registry.REGISTRIES.values():
        things = {name: thing for name, thing in table._things.items() if name not in table._guests}
        monkeypatch.setattr(table, "_things", things)
        monkeypatch.setattr(table, "_guests", {})
    monkeypatch.setattr(plugins, "_files", {})
    timms = sys.modules["timm.models._registry"]
    monkeypatch.setattr(timms, "_model_entrypoints", dict(timms._model_entrypoints))
