"""Numbers behind the figures of detectors: anchors by hand, and padding that moves scores unless it is masked."""

import json

import pytest
import torch

import dynavit
from dynavit.analysis.report.inside.draw_all import KINDS, draw_all
from dynavit.models.detection.boxes import iou
from dynavit.tasks.detection.inside import LARGER, anchor_numbers, padding_numbers
from tasks.detection.targets import batch_of, target

THRESHOLDS = (0.5, 0.4, 0.0)


def detector(name="test_retinanet", **options):
    torch.manual_seed(0)
    model = dynavit.create_model(name, "dtn", **options).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, dtype=parameter.dtype))
    return model


def alone(*targets):
    return [batch_of([one], seed=number).to("cpu", torch.float64) for number, one in enumerate(targets)]


def test_anchors_and_things_are_counted():
    small, large = [10.0, 10.0, 15.0, 15.0], [0.0, 0.0, 63.0, 60.0]
    batches = alone(target([small, large], [0, 1]), target([], []))
    model = detector()
    found = anchor_numbers(model, batches, THRESHOLDS)
    dense = model.dense(batches[0].inputs["images"], batches[0].inputs["sizes"])
    overlaps = iou(torch.cat(dense.anchors), batches[0].targets[0]["boxes"])
    best = overlaps.amax(0).tolist()
    assert best[0] < 0.1 < 0.7 < best[1]
    rows = {row["name"]: row for row in found["sizes"]}
    assert [rows[name]["things"] for name in ("all", "small", "medium", "large")] == [2, 1, 1, 0]
    assert rows["all"]["far"] == 0.5 and rows["small"]["far"] == 1 and rows["large"]["far"] is None
    assert rows["medium"]["best"] == pytest.approx(best[1])
    assert rows["small"]["anchors"] == int((overlaps[:, 0] == overlaps[:, 0].max()).sum())
    assert sum(found["histogram"]) == 2 and found["histogram"][int(best[0] * 10)] == 1
    learn = int((overlaps.amax(1) >= 0.5).sum()) + rows["small"]["anchors"]
    assert sum(row["learn"] for row in found["levels"]) == pytest.approx(learn / 2)  # of two images, one is empty
    assert [row["anchors"] for row in found["levels"]] == [9 * n for n in (64, 16, 4, 1, 1)]


@pytest.mark.parametrize("name", ["test_retinanet", "test_maskrcnn"])
def test_padding_moves_scores_unless_it_is_masked(name):
    model = detector(name)
    found = padding_numbers(model, alone(target([], []), target([], [])))
    assert found["own"] == model.padding == "norm" and len(found["batches"]) == len(LARGER) == 8
    assert all(len(values) == 8 for mode in found["modes"].values() for values in mode.values())
    assert max(found["modes"]["all"]["largest"]) < 1e-10
    assert min(found["modes"]["none"]["largest"]) > 1e-7 and min(found["modes"]["norm"]["largest"]) > 1e-7
    assert model.pyramid.padding == "norm" and not model.pyramid.body.block1[0].attn.hides_padding  # as it was
    timm = dynavit.create_model("retinanet", backbone="pvt_v2_b0", backbone_options={"depths": (1, 1, 1, 1)}, width=16)
    assert padding_numbers(timm, []) is None


def test_both_kinds_are_drawn(tmp_path):
    model, batches = detector(), alone(target([[8.0, 8.0, 40.0, 40.0]], [0]))
    numbers = {"anchors": anchor_numbers(model, batches, THRESHOLDS), "padding": padding_numbers(model, batches)}
    (tmp_path / "analysis").mkdir()
    for kind, found in numbers.items():
        assert kind in KINDS
        about = {"kind": kind, "images": 1, "data": "shapes", "split": "test", "shown": []}
        runs = [{"name": "dtn", "norm": "dtn", "source": {}, **found}]
        (tmp_path / "analysis" / f"{kind}.json").write_text(json.dumps({**about, "runs": runs}))
    sections = draw_all(tmp_path)
    assert [section["kind"] for section in sections] == ["anchors", "padding"]
    assert [table["header"][0] for table in sections[0]["tables"]] == ["size", "level"]
    assert [row[1] for row in sections[1]["tables"][0]["rows"]] == ["masks off", "norms only", "all"]
    drawn = (tmp_path / "analysis" / "padding-0.svg").read_text()
    assert "+64 × +0" in drawn and "masks off" in drawn
