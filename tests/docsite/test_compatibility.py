"""docs/compatibility.md says what its script finds."""

import sys

import pytest
import torch

import dynavit
from documents import ROOT

sys.path.insert(0, str(ROOT / "docsite"))

import compatibility
import tried_models
import tried_norms
from tried_cell import Cell, tried

PAGE = compatibility.PAGE.read_text()


def cells(text: str) -> dict[str, dict[str, str]]:
    """{row: {column: mark}} of all tables of a page; the marks without their footnotes."""
    rows: dict[str, dict[str, str]] = {}
    columns: list[str] = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.strip("|").split("|")]
        if line.startswith("| `"):
            rows[parts[0].strip("`")] = dict(zip(columns, (part.partition(" (")[0] for part in parts[1:]), strict=True))
        elif line.startswith("| "):
            columns = parts[1:]
    return rows


def test_every_norm_and_every_model_has_a_row():
    shown = cells(PAGE)
    assert [name for name in shown if name not in tried_models.MODELS] == dynavit.list_norms()
    assert [name for name in shown if name in tried_models.MODELS] == list(tried_models.MODELS)
    assert all(list(shown[name]) == list(compatibility.ORDER) for name in dynavit.list_norms())
    assert tried_models.names_without_a_row(dynavit.list_models()) == []
    assert tried_models.names_without_a_row(["vit_tiny", "test_vit", "my_net"]) == ["my_net"]


@pytest.mark.parametrize("name", ["ln", "dtn", "bn"])
def test_the_page_says_what_is_found(name):
    found = compatibility.try_norms([name], tried_norms.FAST)[name]
    assert {column: cell.mark for column, cell in found.items()} == {column: cells(PAGE)[name][column] for column in found}


def test_swaps_are_those_of_the_page():
    label = "VisionTransformer (torchvision)"
    found = compatibility.try_models([label])[label]
    assert {norm: cell.mark for norm, cell in found.items()} == cells(PAGE)[label]


def test_a_new_norm_has_a_row_and_its_faults_are_found(no_guest_stays):
    @dynavit.register_norm("rough")
    class Rough(dynavit.Norm):
        """Half precision under autocast, NaN from padding, and a hidden sum over samples."""

        def transform_masked(self, x, grid, mask):
            return self.transform(x, grid, mask)

        def normalise(self, x, grid, mask):
            return torch.nn.functional.layer_norm(x, (self.dim,)) @ torch.eye(self.dim, dtype=x.dtype) + x.sum((0, 1))

    assert "rough" in dynavit.list_norms()
    found = compatibility.try_norms(["rough"], tried_norms.FAST)["rough"]
    assert {column: cell.mark for column, cell in found.items()} == {
        "eager": "yes", "AMP": "no", "checkpointing": "yes", "vmap": "yes", "masks": "no",
    }  # fmt: skip
    assert found["masks"].reason and found["AMP"].reason


def test_reasons_are_grouped():
    notes = compatibility.Footnotes("n")
    rows = {"a": {"x": Cell("yes"), "y": Cell("no", "why")}, "b": {"x": Cell("eval", "late"), "y": Cell("no", "why")}}
    assert compatibility.table("norm", "xy", rows, notes) == [
        "| norm | x | y |", "|---|---|---|", "| `a` | yes | no (n1) |", "| `b` | eval (n2) | no (n1) |", "",
        "- n1: why.", "- n2: late.",
    ]  # fmt: skip


def test_an_error_is_a_reason():
    def fails() -> None:
        raise RuntimeError("\n it cannot.\nmore")

    assert tried(fails) == Cell("no", "it cannot")
    assert tried(lambda: None) == Cell("yes")


@pytest.mark.slow
def test_the_whole_page_is_what_the_script_finds():
    assert compatibility.page(compatibility.try_norms(dynavit.list_norms()), compatibility.try_models()) == PAGE
