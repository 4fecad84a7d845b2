"""An exported file computes what the model does, for every normaliser, at every batch size."""

import numpy as np
import pytest
import torch

import dynavit
from dynavit.deploy.bundle.manifest import write_manifest
from dynavit.deploy.bundle.runner import OnnxPart, load_bundle
from dynavit.deploy.export.closeness import Reference, check_close
from dynavit.deploy.export.program import trace
from dynavit.deploy.export.quantise import quantise_onnx
from dynavit.deploy.export.write_model import write_model

CLASSES = list("abcdefghij")
SIZE = (1, 8, 8)


def built(norm, **options):
    """A tiny ViT, no parameter or statistic of which is as it began."""
    torch.manual_seed(0)
    small = {"img_size": 8, "patch_size": 2, "in_chans": 1, "embed_dim": 32, "depth": 1, "norm_blocks": 1, "heads": 4}
    model = dynavit.create_model("vit_micro", norm=norm, num_classes=10, **small, **options)
    for tensor in model.parameters():
        tensor.data.add_(0.1 * torch.randn_like(tensor))
    with torch.no_grad():
        for _ in range(3):  # in training mode: running statistics move
            model(2 * torch.randn(4, *SIZE) + 1)
    for module in model.modules():
        if hasattr(module, "commit_statistics"):
            module.commit_statistics()
    return model.eval()


def exported(model, directory, format, policy=None):
    facts = write_model(model, directory, SIZE, CLASSES, format=format, policy=policy)
    write_manifest(directory, facts)
    return load_bundle(directory, trust_pt2=format == "pt2")


def check_round_trip(model, bundle):
    assert set(bundle.manifest["error"]["at_batch"]) == {"1", "2", "5"}
    for batch in (1, 2, 5, 7):
        images = torch.randn(batch, *SIZE, generator=torch.Generator().manual_seed(batch))
        with torch.no_grad():
            expected = model(images).numpy()
        found = bundle(images.numpy())
        assert found.shape == (batch, 10)
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    "norm", ["bn", pytest.param("dtn", marks=pytest.mark.slow)]
)  # behind the only block both have a LayerNorm
def test_onnx(tmp_path, norm):
    model = built(norm)
    bundle = exported(model, tmp_path, "onnx")
    check_round_trip(model, bundle)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "model.onnx"]  # weights are inside
    assert {node.domain for node in load_onnx(bundle.path).graph.node} == {""}  # ONNX's own: no kernel of ours is needed


def load_onnx(directory):
    import onnx

    return onnx.load(directory / "model.onnx")


@pytest.mark.slow  # by default: cascades in test_cascade_export.py and serve/test_served_model.py
def test_pt2(tmp_path):
    model = built("ln")
    check_round_trip(model, exported(model, tmp_path, "pt2"))


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "pt2"])
@pytest.mark.parametrize("norm", dynavit.list_norms())
def test_every_norm(tmp_path, norm, format):
    model = built(norm)
    check_round_trip(model, exported(model, tmp_path, format))


@pytest.mark.slow
def test_a_swapped_timm_model(tmp_path):
    torch.manual_seed(0)
    model = dynavit.create_model("test_vit.r160_in1k", norm="dtn", num_classes=10).eval()
    write_model(model, tmp_path, (3, 160, 160), CLASSES, format="onnx", policy=None)


@pytest.mark.parametrize(("error", "refused"), [(1e-6, False), (1e-4, True)])
def test_an_export_that_differs_is_refused(tmp_path, monkeypatch, error, refused):
    model = built("ln")

    def answer(part, images):
        with torch.no_grad():
            return [model(torch.from_numpy(images)).numpy() * (1 + error)]

    monkeypatch.setattr("dynavit.deploy.export.write_model.write_onnx", lambda *_, **__: None)
    monkeypatch.setattr(OnnxPart, "__call__", answer)
    options = {"format": "onnx", "policy": None}
    if not refused:
        assert write_model(model, tmp_path, SIZE, CLASSES, **options)["error"]["at_batch"]["5"] == pytest.approx(error, rel=0.5)
        return
    with pytest.raises(ValueError, match="the exported model at batch 1: its logits differ .* nothing was written"):
        write_model(model, tmp_path, SIZE, CLASSES, **options)


def test_what_counts_as_close():
    exact = np.array([[100.0, -200.0]])
    reference = Reference((exact,), own_error=1e-7)
    assert check_close("x", (exact + 1e-3,), reference) == pytest.approx(5e-6)
    with pytest.raises(ValueError, match="differ"):
        check_close("x", (exact + 3e-3,), reference)
    assert check_close("x", (exact + 3e-3,), Reference((exact,), own_error=1e-5)) == pytest.approx(1.5e-5)
    with pytest.raises(ValueError, match="differ"):
        check_close("x", (exact * np.nan,), reference)
    with pytest.raises(ValueError, match="shapes"):
        check_close("x", (exact[:, :1],), reference)


def test_the_models_own_error_is_that_of_float32():
    model = built("ln")
    reference = Reference.of(model, torch.randn(2, *SIZE))
    assert reference.outputs[0].dtype == np.float64
    assert 1e-9 < reference.own_error < 1e-5
    assert next(model.parameters()).dtype == torch.float32  # a copy was widened


def test_a_model_that_is_not_finite_is_no_reference():
    model = built("ln")
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="the model's own logits are not all finite"):
        Reference.of(model, torch.randn(2, *SIZE))
    with pytest.raises(ValueError, match="differ"):
        check_close("x", (np.full((1, 2), np.nan),), Reference((np.ones((1, 2)),), own_error=float("inf")))


def test_training_mode_is_refused():
    with pytest.raises(ValueError, match="is in training mode; call eval"):
        trace(torch.nn.Linear(2, 2), [torch.zeros(2, 2)])


# ---- 8-bit weights


def test_int8_is_small_and_near(tmp_path):
    """A convolution, which stays, and two matrix products; `tests/cli/test_export.py` has a transformer."""
    torch.manual_seed(0)
    stem = [torch.nn.Conv2d(1, 32, 2, 2), torch.nn.Flatten(), torch.nn.GELU()]
    model = torch.nn.Sequential(*stem, torch.nn.Linear(512, 64), torch.nn.GELU(), torch.nn.Linear(64, 10)).eval()
    (tmp_path / "small").mkdir()
    (tmp_path / "whole").mkdir()
    bundle = exported(model, tmp_path / "whole", "onnx")
    quantise_onnx(bundle.path / "model.onnx", tmp_path / "small" / "model.onnx")
    images = torch.randn(64, *SIZE, generator=torch.Generator().manual_seed(1)).numpy()
    exact, found = bundle(images), OnnxPart(tmp_path / "small" / "model.onnx")(images)[0]
    gap = np.abs(found - exact).max() / np.abs(exact).max()
    assert 1e-5 < gap < 0.1  # rounded, but not far
    before, after = ({node.op_type for node in load_onnx(tmp_path / name).graph.node} for name in ("whole", "small"))
    assert "MatMulInteger" in after - before and "Conv" in after
    sizes = [(tmp_path / name / "model.onnx").stat().st_size for name in ("whole", "small")]
    assert sizes[1] < 0.8 * sizes[0]
