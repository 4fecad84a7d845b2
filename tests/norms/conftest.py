"""Fixtures of the norms' tests."""

import pytest

from norms.dtn_cases import WAYS, choose


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Options for a DTN layer, once for each of the three ways it can be computed."""
    return choose(request.param, monkeypatch)
