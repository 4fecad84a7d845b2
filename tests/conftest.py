"""Shared fixtures, and the rule about skipped tests in CI."""

import os
from pathlib import Path

import pytest

from skip_rule import ALLOWED, SHARED, SkipRule


def pytest_configure(config: pytest.Config) -> None:
    in_worker = hasattr(config, "workerinput")  # xdist; the rule lives where the reports arrive
    if os.environ.get("CI") == "true" and not in_worker:
        # As a plugin of its own: hooks of a conftest are not called for the doctests under src.
        config.pluginmanager.register(SkipRule(SHARED), "skip_rule")


@pytest.fixture(scope="session")
def shared_golden() -> Path:
    """The directory of numbers produced by running the released code; a checkout without it skips the test."""
    golden = SHARED / "golden"
    if not golden.is_dir():
        pytest.skip(f"{ALLOWED}/golden, which is not part of the repository")
    return golden
