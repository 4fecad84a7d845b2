"""ListOps on the command line: with nothing downloaded, compared with seeds, masked and pad-blind, and with files."""

import json

import pytest

pytestmark = pytest.mark.usefixtures("nothing_is_drawn_in_this_file")

SIZES = {"train": 64, "val": 20, "test": 40, "min_length": 8, "max_length": 30, "max_depth": 3}
DATA = ("--data", "listops", *(word for name, n in SIZES.items() for word in (f"--loading.options.{name}", n)))
TINY = ("--batch-size", 16, "--model_options.dim", 16, "--model_options.mlp_dim", 16, "--model_options.depth", 1)


def test_train_eval_predict_report(run, tmp_path):
    out = tmp_path / "run"
    code, told, steps = run("train", *DATA, *TINY, "--norm", "dtn", "--epochs", 1, "--out", out)
    assert code == 0 and "test: accuracy" in told and " of 40 rows" in told
    assert "expression.txt" in steps and "analyze" not in steps and "photo" not in steps
    card = json.loads((out / "model.json").read_text())
    assert card["task"] == "listops" and card["model"]["name"] == "sequence_micro" and card["model"]["max_len"] == 30
    assert card["more"]["vocabulary"][11] == "[MIN" and card["more"]["ladder"][1]["name"] == "root operator"
    code, told, steps = run("eval", out)
    result = json.loads((out / "eval" / "test.json").read_text())
    assert code == 0 and "root operator" in told and "this model" in told and "accuracy by the first token" in told
    right = sum(a == b for a, b in zip(result["labels"], result["predictions"], strict=True))
    assert result["samples"] == 40 and right / 40 == result["accuracy"]
    assert "40 rows" in told and "rows/s with loading" in told and "images" not in told and "predictions written" not in told
    assert "dynavit report" in steps and "robust" not in steps and "analyze" not in steps
    code, _, problem = run("eval", out, "--protocol", "knn")
    assert code == 2 and "this is for images of one size with one class each, and listops" in problem
    (tmp_path / "one.txt").write_text("[MAX 4 2 ]")
    code, told, _ = run("predict", out, tmp_path / "one.txt", "--top", 1)
    assert code == 0 and told.startswith(f"{tmp_path / 'one.txt'}: ")
    assert run("report", out)[0] == 0
    assert "by the root of the expression" in (out / "report.html").read_text()


@pytest.mark.usefixtures("costs_in_few_rounds")
def test_compare_puts_norms_on_the_ladder_and_tests_them_row_by_row(run, tmp_path):
    out = tmp_path / "grid"
    words = ("--norms", "ln,in", "--seeds", "3", "--vary", '{"model_options.norm_mask": [true, false]}')
    code, told, _ = run("compare", *DATA, *TINY, *words, "--epochs", 0.5, "--out", out)
    assert code == 0 and "What the accuracies mean" in told and "McNemar's p, against ln" in told
    assert "Readers: majority" in told
    rows = [line for line in told.partition("What the accuracies mean")[2].splitlines() if line.startswith(("ln", "in"))]
    names = [f"{norm}, norm_mask={mask}" for norm in ("ln", "in") for mask in (True, False)]
    assert [row.split("  ")[0] for row in rows] == names
    assert [row.count(" : ") for row in rows] == [0, 0, 1, 1]  # in against ln with the same mask
    page = (out / "report.html").read_text()
    assert "What the accuracies mean" in page and "root operator" in page


def test_files_instead_and_wrong_ones(run, tmp_path):
    folder = tmp_path / "files"
    out = ("--epochs", 0.25, "--quiet", "--out", tmp_path / "run")
    code, _, _ = run("train", *DATA, *TINY, "--data-dir", folder, "--download", *out)
    assert code == 0 and (folder / "basic_train.tsv").is_file() and (folder / "manifest.json").is_file()
    (folder / "manifest.json").unlink()
    lines = (folder / "basic_val.tsv").read_bytes().split(b"\r\n")
    (folder / "basic_val.tsv").write_bytes(b"\r\n".join([*lines[:3], b"[AVG 1 2 ]\t3", *lines[3:]]))
    code, _, problem = run("train", "--data", "listops", "--data-dir", folder, *TINY, "--out", tmp_path / "other")
    assert code == 2 and "basic_val.tsv:4: unknown token '[AVG'" in problem


def test_models_for_images_are_refused(run, tmp_path):
    code, _, problem = run("train", *DATA, "--model", "vit_micro", "--epochs", 1, "--out", tmp_path / "run")
    assert code == 2 and "vit_micro" in problem
