"""Fall-back when compilation fails."""

import pytest
import torch
from torch import nn

from dynavit.engine.compiling import Compiled


def test_compiled_in_place_and_undone(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda forward: lambda x: forward(x) + 1)
    model, notes = nn.Linear(2, 2), []
    plain = model(torch.ones(2))
    compiled = Compiled(model, True, notes.append)
    assert torch.equal(compiled.attempt(model, torch.ones(2)), plain + 1)
    assert list(model.state_dict()) == ["weight", "bias"]
    compiled.undo()
    compiled.undo()
    assert torch.equal(model(torch.ones(2)), plain) and "forward" not in vars(model) and notes == []


def test_failure_falls_back_once_with_a_notice(monkeypatch):
    def failing(forward):
        def call(x):
            raise RuntimeError("no compiler found\nlong story")

        return call

    monkeypatch.setattr(torch, "compile", failing)
    model, notes = nn.Linear(2, 2), []
    compiled = Compiled(model, True, notes.append)
    assert compiled.attempt(model, torch.ones(2)).shape == (2,)
    assert notes == ["torch.compile failed, going on without it (RuntimeError: no compiler found)"]
    assert not compiled.active


def test_errors_of_the_work_itself_are_raised(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda forward: forward)
    for wanted in (True, False):
        with pytest.raises(RuntimeError, match="shapes"):
            Compiled(nn.Linear(2, 2), wanted, lambda text: None).attempt(nn.Linear(2, 2), torch.ones(3))
