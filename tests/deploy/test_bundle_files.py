"""Bundles as directories: complete or absent, and never trusted before their checksums agree."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import dynavit
from dynavit.common.extras import require
from dynavit.common.lock import BusyError
from dynavit.common.owned import names
from dynavit.deploy.bundle.exit_rule import ExitRule
from dynavit.deploy.bundle.manifest import MANIFEST, is_bundle, names_in_bundle, read_manifest, write_manifest
from dynavit.deploy.bundle.runner import Bundle, load_bundle
from dynavit.deploy.directory import new_directory
from dynavit.models.cascade.policy import CONFIDENCES, ExitPolicy
from dynavit.runs.predict import predict_run


@pytest.fixture
def bundle(tmp_path):
    """Files and a manifest, as far as checksums are concerned."""
    directory = tmp_path / "bundle"
    directory.mkdir()
    (directory / "model.onnx").write_bytes(b"0123456789")
    facts = {"backend": "onnx", "parts": ["model.onnx"], "classes": ["a", "b"], "input": [1, 2, 2]}
    write_manifest(directory, facts)
    return directory


def test_a_whole_bundle_is_read(bundle):
    assert is_bundle(bundle)
    assert read_manifest(bundle)["files"]["model.onnx"]["bytes"] == 10


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"012345678", "has 9 bytes, the manifest says 10"), (b"012345678X", "was altered: its SHA-256"), (None, "is missing")],
)
def test_a_file_that_differs_is_named_and_not_opened(bundle, content, message):
    file = bundle / "model.onnx"
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        load_bundle(bundle)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "dynavit bundle 99"}, "describes 'dynavit bundle 99', this version reads"),
        ({"files": ["model.onnx"]}, r"manifest.json is damaged, .*files=\['model.onnx'\]: names and values"),
        ({"files": {"../x": {"bytes": 0, "sha256": ""}}}, "plain files in its own directory"),
        ({"files": {"/etc/hostname": {"bytes": 0, "sha256": ""}}}, "plain files in its own directory"),
        ({"files": {"..": {"bytes": 0, "sha256": ""}}}, "is missing from the bundle"),
        ({"parts": ["other.onnx"]}, "names other.onnx as a part of the model, but lists no such file"),
    ],
)
def test_a_manifest_that_makes_no_sense(bundle, change, message):
    (bundle.parent / "x").touch()  # is there, but outside
    manifest = json.loads((bundle / MANIFEST).read_text())
    (bundle / MANIFEST).write_text(json.dumps(manifest | change))
    with pytest.raises(ValueError, match=message):
        load_bundle(bundle)


def test_a_pt2_file_is_opened_only_for_those_who_trust_it(bundle, monkeypatch):
    opened = []
    monkeypatch.setattr(torch.export, "load", lambda file: opened.append(file))
    manifest = json.loads((bundle / MANIFEST).read_text())
    (bundle / MANIFEST).write_text(json.dumps(manifest | {"backend": "pt2"}))
    refused = "bundle is a .pt2 bundle and was not opened: such files can run any code .* say --trust-pt2"
    for ask in (load_bundle, dynavit.load, lambda run: predict_run(run, [MANIFEST])):
        with pytest.raises(ValueError, match=refused):
            ask(bundle)
    assert not opened
    with pytest.raises(AttributeError):  # of None, which is all that stands in for the program
        dynavit.load(bundle, trust_pt2=True)(torch.zeros(1, 1, 2, 2))
    assert opened == [bundle / "model.onnx"]
    (bundle / MANIFEST).write_text(json.dumps(manifest | {"backend": "pickle"}))
    with pytest.raises(ValueError, match="manifest.json: the backend is onnx or pt2, not 'pickle'"):
        load_bundle(bundle, trust_pt2=True)


def test_a_link_is_not_followed(bundle):
    (bundle / "model.onnx").rename(bundle.parent / "elsewhere")
    (bundle / "model.onnx").symlink_to(bundle.parent / "elsewhere")
    with pytest.raises(ValueError, match="names 'model.onnx'; a bundle consists of plain files in its own directory"):
        load_bundle(bundle)


def test_what_is_no_bundle(tmp_path, bundle):
    with pytest.raises(ValueError, match="has no manifest.json, so it is not a bundle of `dynavit export`"):
        load_bundle(tmp_path)
    with pytest.raises(ValueError, match="is not a directory"):
        load_bundle(tmp_path / "absent")
    with pytest.raises(ValueError, match="holds no 8-bit model; export the run with --int8"):
        load_bundle(bundle, int8=True)
    (tmp_path / MANIFEST).write_text('{"format": "dynavit checkpoint 1"}')
    assert not is_bundle(tmp_path)


def write(out, text="new", meanwhile=lambda: None, **options):
    with new_directory(out, ours=lambda path: names("ours") if (path / "ours").exists() else None, **options) as directory:
        (directory / "ours").write_text(text)
        assert directory.parent == out.parent  # so that the last step is a rename
        meanwhile()


def stop():
    raise KeyboardInterrupt


def test_a_directory_appears_as_a_whole(tmp_path):
    out = tmp_path / "deep" / "out"
    with pytest.raises(KeyboardInterrupt):
        write(out, meanwhile=stop)
    assert list(out.parent.iterdir()) == []
    write(out, meanwhile=lambda: check_absent(out))
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def check_absent(path):
    assert not path.exists()


def test_an_existing_directory_is_replaced_only_on_request_and_if_it_is_ours(tmp_path):
    out = tmp_path / "out"
    write(out)
    with pytest.raises(ValueError, match="exists and is not empty; choose another folder, or overwrite it"):
        write(out, "newer")
    write(out, "newer", overwrite=True)
    assert (out / "ours").read_text() == "newer"
    with pytest.raises(KeyboardInterrupt):
        write(out, "newest", overwrite=True, meanwhile=stop)
    assert (out / "ours").read_text() == "newer"
    (out / "ours").rename(out / "somebody's")
    with pytest.raises(ValueError, match="holds something else, so it is not overwritten"):
        write(out, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_foreign_file_beside_ours_is_named_and_nothing_is_replaced(tmp_path):
    out = tmp_path / "out"
    write(out)
    (out / "deep").mkdir()
    (out / "deep" / "thesis.tex").touch()
    with pytest.raises(ValueError, match="also holds 'deep/', 'deep/thesis.tex', so it is not overwritten; move that"):
        write(out, "newer", overwrite=True)
    shutil.rmtree(out / "deep")
    with pytest.raises(ValueError, match="also holds 'notes'"):  # it came while we wrote
        write(out, "newer", overwrite=True, meanwhile=lambda: (out / "notes").touch())
    assert (out / "ours").read_text() == "new" and (out / "notes").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_names_in_a_bundle_are_those_of_its_manifest(bundle, tmp_path):
    listed = names_in_bundle(bundle)
    assert all(listed.fullmatch(file.name) for file in bundle.iterdir())
    assert not listed.fullmatch("thesis.tex") and not listed.fullmatch("modelXonnx")
    assert names_in_bundle(tmp_path) is None


def test_two_writers_of_one_directory(tmp_path):
    def second():
        with pytest.raises(BusyError, match="is being written by process"):
            in_thread(lambda: write(tmp_path / "out", "theirs", overwrite=True))

    write(tmp_path / "out", meanwhile=second)  # not there yet
    write(tmp_path / "out", "newer", meanwhile=second, overwrite=True)
    assert (tmp_path / "out" / "ours").read_text() == "newer"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def in_thread(work):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def test_a_directory_that_came_up_meanwhile_is_kept(tmp_path):
    def come_up():
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs").touch()

    with pytest.raises(ValueError, match="exists and is not empty"):
        write(tmp_path / "out", meanwhile=come_up)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["out", "theirs"]


def test_an_old_directory_survives_a_rename_that_fails(tmp_path, monkeypatch):
    out, rename = tmp_path / "out", Path.rename
    write(out)

    def failing(self, target):
        if Path(target) == out and (self / "ours").read_text() == "newer":
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="no"):
        write(out, "newer", overwrite=True)
    assert (out / "ours").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_a_killed_call_left_is_cleared_up(tmp_path):
    """Killed between the renames, while it wrote, and after the new directory was in place."""
    out = tmp_path / "out"
    write(out)
    out.rename(tmp_path / ".out.replaced")
    (tmp_path / ".out.01234567.tmp").mkdir()
    (tmp_path / ".out.else.01234567.tmp").mkdir()  # another's
    with pytest.raises(ValueError, match="exists and is not empty"):
        write(out, "newer")
    assert (out / "ours").read_text() == "new"
    (tmp_path / ".out.replaced").mkdir()
    write(out, "newer", overwrite=True)
    assert (out / "ours").read_text() == "newer"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.else.01234567.tmp", "out"]


def test_a_link_to_a_directory_is_followed(tmp_path):
    write(tmp_path / "deep" / "real")
    (tmp_path / "out").symlink_to(tmp_path / "deep" / "real")
    with new_directory(tmp_path / "out", ours=lambda path: names("ours"), overwrite=True) as directory:
        (directory / "ours").write_text("newer")
    assert (tmp_path / "deep" / "real" / "ours").read_text() == "newer" and (tmp_path / "out").is_symlink()


def test_a_missing_library_comes_with_the_command():
    with pytest.raises(ValueError, match=r"pip install 'dynavit\[export\]'"):
        require("no_such_library", "export")


# ---- when images leave


@pytest.mark.parametrize("kind", CONFIDENCES)
def test_the_rule_is_the_policy(tmp_path, kind):
    policy = ExitPolicy((0.4, 1e8, -1.0), kind)
    (tmp_path / "policy.json").write_text(policy.to_json())
    rule = ExitRule.read(tmp_path / "policy.json")
    logits = 3 * torch.randn(200, 7, generator=torch.Generator().manual_seed(0))
    assert np.allclose(rule.confidence(logits.numpy()), policy.confidence(logits), atol=1e-6)
    shares = []
    for exit in range(3):
        assert np.array_equal(rule.leaves(logits.numpy(), exit), policy.leaves(logits, exit))
        shares.append(rule.leaves(logits.numpy(), exit).mean())
    assert 0.05 < shares[0] < 0.95 and shares[1:] == [0, 1]
    logits[:] = float("nan")
    assert rule.leaves(logits.numpy(), 2).all()  # someone has to answer
    assert not rule.leaves(logits.numpy(), 0).any() and not policy.leaves(logits, 0).any()  # NaN is no confidence


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"thresholds": [0.5, null], "confidence_kind": "luck"}', '{"thresholds": [null]}']
)
def test_what_is_no_policy(tmp_path, text):
    (tmp_path / "policy.json").write_text(text)
    with pytest.raises(ValueError, match="policy.json"):
        ExitRule.read(tmp_path / "policy.json")


def test_only_unsure_images_reach_the_next_exit():
    sure = np.array([[9.0, 0], [0, 0], [0, 9], [0, 0.1]], np.float32)
    calls = []

    def first(images):
        calls.append(("first", len(images)))
        return [sure[images[:, 0, 0, 0].astype(int)], images[:, 0] * 10]

    def second(images, reused):
        calls.append(("second", reused.ravel().tolist()))
        return [np.tile(np.array([[0.0, 5]], np.float32), (len(images), 1))]

    facts = {"classes": ["a", "b"], "input": [1, 1, 1]}
    bundle = Bundle(None, facts, [first, second], ExitRule((0.9, -np.inf), "max_softmax"))
    images = np.arange(4, dtype=np.float32).reshape(4, 1, 1, 1)
    answers = bundle.predict(images)
    assert calls == [("first", 4), ("second", [10, 30])]
    assert answers.exit.tolist() == [0, 1, 0, 1] and answers.labels.tolist() == [0, 1, 1, 1]
    calls.clear()
    assert bundle.predict(images[[0, 2]]).exit.tolist() == [0, 0]
    assert calls == [("first", 2)]  # the second is not run at all
    assert len(bundle.predict(images[:0]).labels) == 0
    with pytest.raises(ValueError, match=r"got images of shape \(4, 1, 2, 1\); the model takes \(batch, 1, 1, 1\)"):
        bundle.predict(np.zeros((4, 1, 2, 1), np.float32))
    everything = Bundle(None, facts, [first, second], None).predict(images)
    assert everything.exit.tolist() == [1] * 4
