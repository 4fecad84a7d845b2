import json

from dynavit.cli.main import main
from dynavit.convert import SwapPlan


def test_table_and_counts(capsys):
    assert main(["convert", "--model", "test_vit", "--norm", "dtn"]) == 0
    out = capsys.readouterr().out
    assert "blocks.0.norm1" in out
    assert "\x1b" not in out
    counted = [line for line in out.splitlines() if "swapped" in line][-1]
    assert counted == "6 swapped, 1 kept, 0 refused"


def test_json_is_the_plan(capsys):
    words = ["convert", "--model", "test_vit", "--where", "blocks.*.norm1", "--start", "near", "--input-size", "160", "--json"]
    assert main(words) == 0
    plan = SwapPlan.from_json(capsys.readouterr().out)
    assert plan.counts() == {"swap": 3, "keep": 4, "refuse": 0}
    assert plan.start == "near"
    assert plan.deviation is not None and plan.deviation > 0


def test_mistakes_are_one_line(capsys):
    assert main(["convert", "--model", "test_vit", "--norm", "dnt"]) == 2
    assert "Did you mean" in capsys.readouterr().err
    assert main(["convert", "--model", "levit_128s", "--start", "near"]) == 2
    assert "no norm to swap" in capsys.readouterr().err


def test_levit_when_asked(capsys):
    assert main(["convert", "--model", "levit_128s", "--site", "linear_bn", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["action"] == "swap"
