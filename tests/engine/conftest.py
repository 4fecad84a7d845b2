"""Disks are slow, and no test here cuts the power: forcing bytes to disk does nothing."""

import os

import pytest


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
