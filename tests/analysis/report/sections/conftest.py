"""Sections are words and numbers: figures among them are not drawn before a page is made of them."""

import pytest


@pytest.fixture(autouse=True)
def nothing_is_drawn(monkeypatch):
    def refuse(name, figure):
        raise AssertionError(f"{figure.label!r} is drawn")

    monkeypatch.setattr("dynavit.analysis.report.figures.canvas._painted", refuse)
