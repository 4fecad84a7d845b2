"""Every example runs, shortened; each is short enough to be read. So does the notebook."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from documents import ROOT
from dynavit.cli.main import main

sys.path.insert(0, str(ROOT / "docsite"))

from notebooks import page_of_notebook, read, run

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOK = ROOT / "examples" / "dtn_story.ipynb"
LINES = 80


def example(name):
    """Its functions."""
    return runpy.run_path(str(ROOT / "examples" / f"{name}.py"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_is_short_and_says_how_to_run_it(file):
    text = file.read_text()
    assert len(text.splitlines()) < LINES
    assert f"examples/{file.name}" in text.split('"""')[1], "its docstring has the command"
    assert f"test_{file.stem}" in globals(), "and it is run below"


def test_my_norm(tmp_path, no_guest_stays):
    assert runs_from_command_line("my_norm", "--norm", "mine", tmp_path) == 0


def test_my_task(tmp_path, no_guest_stays):
    assert runs_from_command_line("my_task", "--task", "number", tmp_path) == 0


def runs_from_command_line(name, option, value, folder):
    short = ["--epochs", "0.05", "--model_options.depth", "1", "--model_options.norm_blocks", "1"]
    plugin = str(ROOT / "examples" / f"{name}.py")
    return main(["train", "--plugin", plugin, option, value, *short, "--out", str(folder / "run")])


def test_plain_loop(capsys):
    assert example("plain_loop")["main"](epochs=1) > 0.15
    assert "blocks.0.norm1 {'lambda_mean.0'" in capsys.readouterr().out


def test_timm_identity_start(capsys):
    assert example("timm_identity_start")["main"](epochs=1) < 1e-4, "swapping in the identity changes no logit"
    assert "swap    blocks.1.norm2" in capsys.readouterr().out


def test_cascade_with_deadline():
    exits = example("cascade_with_deadline")["main"](epochs=0.5, milliseconds=1000, images=3)
    assert exits[0.0] == 1 and exits[1000.0] > 1, "an untrained cascade is never sure: time alone decides"


@pytest.mark.slow
def test_onnxruntime_alone():
    assert "torch was not imported" in example("onnxruntime_alone")["main"](epochs=0.5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of another library
def test_huggingface_trainer():
    pytest.importorskip("transformers")
    assert example("huggingface_trainer")["main"](epochs=2) > 0.15


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_lightning_module():
    pytest.importorskip("lightning")
    assert example("lightning_module")["main"](epochs=2, norm="un") > 0.15


@pytest.mark.slow
def test_ddp():
    call = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", str(ROOT / "examples" / "ddp.py")]
    done = subprocess.run(call, capture_output=True, text=True, timeout=300, check=False)
    assert "2 processes" in done.stdout and "weights differ by 0.0e+00" in done.stdout, done.stderr


# ---- The notebook


def shown(cell):
    """Kinds of what a cell shows."""
    return [output["output_type"] for output in cell["outputs"]]


def test_the_notebook_can_be_read_as_it_is():
    cells = read(NOTEBOOK)["cells"]
    pictures = [output for cell in cells for output in cell.get("outputs", []) if "data" in output]
    assert len(pictures) == 5 and all(picture["data"]["text/plain"][0] for picture in pictures), "each says what it shows"
    assert NOTEBOOK.stat().st_size < 300_000
    assert [cell["id"] for cell in cells] == list(dict.fromkeys(cell["id"] for cell in cells))


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_is_stored():
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    stored, cells = read(NOTEBOOK)["cells"], read(NOTEBOOK)["cells"]
    (training,) = [cell for cell in cells if "EPOCHS = 10\n" in cell["source"]]
    training["source"][0] = "EPOCHS = 1\n"
    found = run(cells, NOTEBOOK.name)
    for before, after in zip(stored, cells, strict=True):
        if before["cell_type"] == "code":
            assert shown(after) == shown(before)
    assert len(found["history"]) == 41, "λ of each step"
    for _, layer in found["dtn_layers"](found["dtn"]):
        weights = layer.positional_weights(found["GRID"], found["TOKEN"])
        torch.testing.assert_close(weights.sum((-2, -1)), torch.ones(4, dtype=torch.float64))
    assert found["means"]["dtn"] > 2 * found["means"]["ln"], "lengths of tokens differ more after DTN"


def test_a_notebook_becomes_a_page(tmp_path: Path):
    page = page_of_notebook(NOTEBOOK, tmp_path)
    assert page.startswith("# The story of DTN in pictures\n") and "```python\nimport matplotlib" in page
    assert "](dtn_story_1.png)" in page and (tmp_path / "dtn_story_5.png").read_bytes().startswith(b"\x89PNG")
    assert "```text\nright on test: " in page


def test_an_error_in_a_notebook_names_its_cell():
    cells = [{"cell_type": "code", "source": ["1 / 1"]}, {"cell_type": "code", "source": ["1 / 0"]}]
    with pytest.raises(ZeroDivisionError) as caught:
        run(cells, "x.ipynb")
    assert "x.ipynb, cell 2" in str(caught.traceback[-1].path)
