"""Shared fixtures, the order of the files, and the rule about skipped tests in CI."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skip_rule import ALLOWED, SHARED, SkipRule

# Processes take whole files, and a long one that begins last would keep the others waiting: these begin, the longest first.
LONGEST = (
    "tests/test_snippets.py",
    "tests/doors/test_doors.py",
    "tests/norms/gpu/test_interpreted.py",
    "tests/norms/test_contract.py",
    "tests/models/test_contract.py",
    "tests/runs/test_compare.py",
    "tests/runs/test_analyze.py",
    "tests/models/released/test_importing.py",
    "tests/norms/test_native_compilers.py",
    "tests/test_recipes.py",
    "tests/runs/test_probe.py",
    "tests/tasks/test_dino_training.py",
    "tests/test_imports.py",
    "tests/engine/test_resume.py",
    "tests/analysis/report/test_browser.py",
    "tests/deploy/test_export.py",
)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "loadscopereorder"):  # xdist of its own accord begins with the files that hold most tests
        config.option.loadscopereorder = False
    in_worker = hasattr(config, "workerinput")  # xdist; the rule lives where the reports arrive
    if os.environ.get("CI") == "true" and not in_worker:
        # As a plugin of its own: hooks of a conftest are not called for the doctests under src.
        config.pluginmanager.register(SkipRule(SHARED), "skip_rule")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    place = {config.rootpath / name: at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[None]:
    """Modules and tests stay: nobody looks for garbage in them, now or later. That would cost seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def shared_golden() -> Path:
    """The directory of numbers produced by running the released code; a checkout without it skips the test."""
    golden = SHARED / "golden"
    if not golden.is_dir():
        pytest.skip(f"{ALLOWED}/golden, which is not part of the repository")
    return golden


@pytest.fixture(scope="module")
def costs_in_few_rounds() -> Iterator[None]:
    """`compare` measures times as tests/bench does, but no test looks at how often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dynavit.bench.cost.ROUNDS", 1)
        yield


@pytest.fixture
def nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made but not drawn, which takes the longest; tests/analysis/report looks at them as they are drawn."""

    def save_nothing(figure, file, *, format, **how):
        file.write('<svg viewBox="0 0 1 1"></svg>' if format == "svg" else b"")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", save_nothing)


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
