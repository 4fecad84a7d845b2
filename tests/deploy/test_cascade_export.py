"""An exported cascade: files that pass on what is reused, and one that stops by itself."""

import numpy as np
import pytest
import torch

import dynavit
from deploy.test_export import SIZE, exported
from dynavit.deploy.bundle.runner import OnnxPart
from dynavit.deploy.export.cascade import ExitPart, StoppingCascade
from dynavit.deploy.export.write_model import EARLY_EXIT
from dynavit.models.cascade.policy import ExitPolicy

TWO = (((4, 4, 0),), ((2, 2, 0),))
THREE = (((8, 8, 0),), *TWO)


def cascade(splits=TWO, **options):
    torch.manual_seed(0)
    model = dynavit.create_model("dvt_vit_digits", in_chans=1, depth=1, embed_dim=16, splits=splits, **options)
    for tensor in model.parameters():
        tensor.data.add_(0.3 * torch.randn_like(tensor))  # else no exit is ever sure
    return model.eval()


def some_images(n=24):
    return 2 * torch.randn(n, *SIZE, generator=torch.Generator().manual_seed(3))


def dividing_policy(model, kind="max_softmax"):
    """Thresholds in the middle of a gap of confidences, with which about half of the images leave at each exit."""
    with torch.no_grad():
        exits = model(some_images())
    middles = []
    for logits in exits[:-1]:
        conf = ExitPolicy((-1.0,), kind).confidence(logits).sort().values
        middles.append(float(conf[11] + conf[12]) / 2)
    return ExitPolicy((*middles, -1.0), kind)


def check_same_predictions(bundle, model, policy):
    expected = model.predict(some_images(), policy)
    found = bundle.predict(some_images().numpy())
    assert np.array_equal(found.exit, expected.exit) and np.array_equal(found.labels, expected.labels)
    assert np.allclose(found.confidence, expected.confidence, atol=1e-5)
    shares = np.bincount(found.exit, minlength=policy.exits)
    assert (shares > 0).all()
    return expected


@pytest.mark.slow
def test_onnx(tmp_path):
    """Features pass from exit to exit here, relations in the next test, both in `test_whatever_is_reused`."""
    model = cascade(relation_reuse=False)
    policy = dividing_policy(model)
    bundle = exported(model, tmp_path, "onnx", policy)
    names = ["early_exit.onnx", "exit0.onnx", "exit1.onnx", "manifest.json", "policy.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    with torch.no_grad():
        for found, expected in zip(bundle.exits(some_images().numpy()), model(some_images()), strict=True):
            assert np.allclose(found, expected, atol=1e-4)
    expected = check_same_predictions(bundle, model, policy)
    # The single file agrees, image by image, and really branches.
    single = OnnxPart(tmp_path / EARLY_EXIT)
    import onnx

    assert "If" in {node.op_type for node in onnx.load(tmp_path / EARLY_EXIT).graph.node}
    for at, image in enumerate(some_images().split(1)):
        logits, exit = single(image.numpy())
        assert (exit[0], logits.argmax()) == (expected.exit[at], expected.labels[at])


def test_later_files_are_not_even_opened(tmp_path):
    model = cascade(feature_reuse=False)
    bundle = exported(model, tmp_path, "pt2", ExitPolicy((0.0, -1.0)))
    assert bundle.predict(some_images(3).numpy()).exit.tolist() == [0, 0, 0]
    assert ["module" in vars(part) for part in bundle.parts] == [True, False]
    assert not (tmp_path / EARLY_EXIT).exists()  # ONNX only
    bundle.rule = None  # without a policy the last exit answers
    assert bundle.predict(some_images(3).numpy()).exit.tolist() == [1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["max_softmax", "margin", "entropy"])
def test_three_exits(tmp_path, kind):
    model = cascade(THREE)
    policy = dividing_policy(model, kind)
    expected = check_same_predictions(exported(model, tmp_path, "onnx", policy), model, policy)
    single = OnnxPart(tmp_path / EARLY_EXIT)
    assert [int(single(image.numpy())[1][0]) for image in some_images().split(1)] == expected.exit.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    "reuse", [{}, {"feature_reuse": False}, {"feature_reuse": False, "relation_reuse": False}, {"norm": "dtn"}]
)
def test_whatever_is_reused(tmp_path, reuse):
    model = cascade(**reuse)
    policy = dividing_policy(model)
    check_same_predictions(exported(model, tmp_path, "onnx", policy), model, policy)


def test_names_of_what_passes_between_exits():
    model = cascade(THREE, feature_reuse=False)
    parts = [ExitPart(model, at) for at in range(3)]
    assert [part.input_names for part in parts] == [["images"], ["images", "relations"], ["images", "relations"]]
    assert [part.output_names for part in parts] == [["logits", "next_relations"]] * 2 + [["logits"]]


def test_a_policy_for_another_cascade_is_refused():
    with pytest.raises(ValueError, match="thresholds for 2 exits, the cascade has 3"):
        StoppingCascade(cascade(THREE), ExitPolicy((0.5, -1.0)))
