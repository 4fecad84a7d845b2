"""metrics.csv beside metrics.jsonl."""

import csv
import json

from dynavit.runs.directory import RunDirectory
from dynavit.runs.metrics_csv import write_metrics_csv
from dynavit.runs.report import write_report

TIME = {"seconds": 1.5, "images_per_second": 10.0}
LINES = [
    {"kind": "train", "step": 5, "epoch": 0.5, "loss": 2.25, "lr": 1e-3, "top1": 0.125, "time": TIME},
    {"kind": "note", "step": 5, "epoch": 0.5, "text": "a broken image"},
    {"kind": "scalars", "step": 10, "epoch": 1.0, "values": {"blocks.0.norm1": {"lambda_mean": [0.5]}}},
    {"kind": "eval", "step": 10, "epoch": 1.0, "split": "val", "weights": "ema", "loss": None, "top1": 0.5, "per": [1]},
    {"kind": "train", "step": 10, "epoch": 1.0, "loss": 2.0, "lr": 1e-3, "top1": 0.25, "broken": 2, "time": TIME},
]


def test_a_row_for_each_line_and_a_column_for_each_number(tmp_path):
    run = RunDirectory.create(tmp_path / "run")
    text = "".join(json.dumps(line) + "\n" for line in LINES)
    run.metrics_file.write_text(text + '{"kind": "train", "st')  # it is still training
    with write_metrics_csv(run.path).open(newline="") as file:
        rows = list(csv.DictReader(file))
    where = ["kind", "split", "weights", "step", "epoch"]
    assert list(rows[0]) == [*where, "loss", "lr", "top1", "broken", "seconds", "images_per_second"]
    assert [row["kind"] for row in rows] == ["train", "eval", "train"]
    assert [row["loss"] for row in rows] == ["2.25", "", "2.0"] and [row["broken"] for row in rows] == ["", "", "2"]
    assert (rows[1]["split"], rows[1]["weights"], rows[1]["top1"], rows[1]["seconds"]) == ("val", "ema", "0.5", "")


def test_the_report_writes_it_again_and_a_run_may_be_overwritten_with_it(tmp_path):
    run = RunDirectory.create(tmp_path / "run")
    run.write_config({"data": "digits"})
    run.metrics_file.write_text(json.dumps(LINES[0]) + "\n")
    write_report(run.path)
    assert run.metrics_table.read_text().splitlines()[1] == "train,,,5,0.5,2.25,0.001,0.125,1.5,10.0"
    RunDirectory.create(run.path, overwrite=True)
    assert not run.metrics_table.exists()
