"""Shared fixtures, the order of the files, and the rule about skipped tests in CI."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skip_rule import ALLOWED, SHARED, SkipRule

# Processes take whole files, and a long one that begins last would keep the others waiting: these begin, the longest first.
# They are those of `make test`.
LONGEST = (
    "tests/doors/test_doors.py",
    "tests/deploy/serve/test_page_states.py",
    "tests/norms/test_dtn_op.py",
    "tests/runs/test_foreign.py",
    "tests/runs/test_compare.py",
    "tests/runs/test_analyze.py",
    "tests/analysis/report/test_browser.py",
    "tests/engine/test_resume.py",
    "tests/models/released/test_importing.py",
    "tests/deploy/serve/test_faults_wire.py",
    "tests/deploy/serve/test_served_model.py",
    "tests/test_snippets.py",
    "tests/convert/test_plan.py",
    "tests/runs/test_robustness.py",
    "tests/test_recipes.py",
    "tests/norms/gpu/test_interpreted.py",
    "tests/analysis/report/inside/test_draw_all.py",
    "tests/deploy/test_export.py",
    "tests/models/test_contract.py",
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
    """`compare` and `calibrate` measure times as tests/bench does, but no test looks at how often."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("cost.ROUNDS", "exits.EXIT_ROUNDS", "exits.PREDICTION_ROUNDS"):
            patch.setattr(f"dynavit.bench.{name}", 1)
        yield


@pytest.fixture(scope="module")
def probes_of_few_strengths() -> Iterator[None]:
    """Self-distilled models are judged by a classifier for each strength; tasks/test_linear_probes.py tries all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dynavit.tasks.cached_probe.STRENGTHS", (0.01, 0.0001))
        yield


def _save_nothing(figure, file, *, format, **how):
    file.write('<svg viewBox="0 0 1 1"></svg>' if format == "svg" else b"")


@pytest.fixture
def nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made but not drawn, which takes the longest; tests/analysis/report looks at them as they are drawn."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", _save_nothing)


@pytest.fixture(scope="module")
def nothing_is_drawn_in_this_file() -> Iterator[None]:
    """The same from the first test of a file to its last, its fixtures too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure.savefig", _save_nothing)
        yield


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
