"""Models as Hugging Face repositories: what is saved loads again, also through a hub, here a fake one on this machine."""

import base64
import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
import yaml

import dynavit
from documents import ROOT
from dynavit.runs.repository import is_repository

pytestmark = pytest.mark.usefixtures("costs_in_few_rounds", "nothing_is_drawn_in_this_file")

SMALL = {"img_size": 8, "in_chans": 1, "depth": 1, "num_classes": 10}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    dynavit.train_run(dynavit.TrainConfig(norm="dtn", epochs=0.1, model_options={"depth": 1, "norm_blocks": 1}), out)
    return out


@pytest.fixture(scope="module")
def repository(run, tmp_path_factory):
    return dynavit.save_pretrained(run, tmp_path_factory.mktemp("saved") / "model", license="apache-2.0")


def same(one, other):
    torch.manual_seed(0)
    images = torch.randn(3, 1, 8, 8)
    with torch.no_grad():
        return torch.equal(one(images), other(images))


def front_matter(folder):
    return yaml.safe_load((folder / "README.md").read_text().split("---")[1])


def test_a_saved_run_loads_as_itself(run, repository):
    assert sorted(file.name for file in repository.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert same(dynavit.load(repository), dynavit.load(run))
    assert not dynavit.load(repository).training


def test_the_config_says_how_to_build_it(repository):
    config = json.loads((repository / "config.json").read_text())
    assert config["library_name"] == "dynavit" and config["architecture"] == "vit_micro"
    assert config["model"]["norm"] == "dtn" and config["id2label"]["7"] == "7"
    assert config["source"]["checkpoint"] == "last"


def test_the_card_has_the_numbers_of_the_run(run, repository):
    evaluated = json.loads((run / "eval" / "test.json").read_text())
    about = front_matter(repository)
    assert (about["library_name"], about["license"], about["pipeline_tag"]) == ("dynavit", "apache-2.0", "image-classification")
    (result,) = about["model-index"][0]["results"]
    assert {metric["type"]: metric["value"] for metric in result["metrics"]}["top1"] == evaluated["top1"]
    text = (repository / "README.md").read_text()
    assert f"{evaluated['top1']:.2%}" in text.replace(" %", "%") and "360 samples" in text and "dynavit.load(" in text


@pytest.mark.parametrize("name", ["vit_micro", "dvt_vit_digits"])
def test_a_model_without_a_run(tmp_path, name):
    options = SMALL if name == "vit_micro" else {"num_classes": 10, "img_size": 8, "in_chans": 1}
    model = dynavit.create_model(name, norm="dtn", **options).eval()
    folder = dynavit.save_pretrained(model, tmp_path / "x", classes=list("abcdefghij"))
    loaded = dynavit.load(folder)
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert "model-index" not in front_matter(folder) and "No licence was chosen" in (folder / "README.md").read_text()


def test_a_model_of_timm_with_another_norm(tmp_path):
    model = dynavit.create_model("test_vit", norm="rms", num_classes=3).eval()
    loaded = dynavit.load(dynavit.save_pretrained(model, tmp_path / "x"))
    images = torch.randn(2, 3, 160, 160)
    with torch.no_grad():
        assert torch.equal(model(images), loaded(images))


@pytest.mark.parametrize("norm", ["gn", "dtn"])  # gn has the shapes of LayerNorm, so weights alone do not tell them apart
def test_a_model_whose_norms_were_swapped(tmp_path, norm):
    model = dynavit.swap_norms(dynavit.create_model("vit_micro", **SMALL), norm, start="near" if norm == "dtn" else None).eval()
    folder = dynavit.save_pretrained(model, tmp_path / "x")
    assert same(dynavit.load(folder), model)
    assert norm in front_matter(folder)["tags"] and f"# vit_micro with {norm}" in (folder / "README.md").read_text()
    again = dynavit.save_pretrained(dynavit.load(folder), tmp_path / "y")
    assert same(dynavit.load(again), model)


def test_a_model_of_timm_that_was_created_with_one_norm_and_swapped_to_another(tmp_path):
    model = dynavit.swap_norms(dynavit.create_model("test_vit", norm="rms", num_classes=3), "dtn").eval()
    loaded = dynavit.load(dynavit.save_pretrained(model, tmp_path / "x"))
    images = torch.randn(2, 3, 160, 160)
    with torch.no_grad():
        assert torch.equal(model(images), loaded(images))


def test_a_norm_of_somebody_else_is_named(tmp_path, no_guest_stays):
    dynavit.load_plugin(ROOT / "examples" / "my_norm.py")
    model = dynavit.swap_norms(dynavit.create_model("vit_micro", **SMALL), "mine")
    folder = dynavit.save_pretrained(model, tmp_path / "x")
    assert "call `dynavit.load_plugin` for each of my_norm.py first" in (folder / "README.md").read_text()
    (guest,) = json.loads((folder / "config.json").read_text())["guests"]
    assert (guest["name"], guest["file"]) == ("mine", "my_norm.py"), "without the way to it on this machine"
    assert same(dynavit.load(folder), model.eval())


def test_a_calibrated_cascade_keeps_its_thresholds(tmp_path):
    from dynavit.runs.calibrate import Goal, calibrate_run

    out = tmp_path / "run"
    dynavit.train_run(dynavit.TrainConfig(model="dvt_vit_digits", epochs=0.1, model_options={"depth": 1}), out)
    calibrate_run(out, Goal(accuracy=0.01))
    folder = dynavit.save_pretrained(out, tmp_path / "x")
    assert json.loads((folder / "policy.json").read_text()) == json.loads((out / "policy.json").read_text())


# ---- What is refused


def test_models_that_cannot_be_built_again_are_refused(tmp_path):
    with pytest.raises(ValueError, match="Linear was not made by dynavit.create_model"):
        dynavit.save_pretrained(torch.nn.Linear(2, 2), tmp_path / "x")
    changed = dynavit.create_model("vit_micro", **SMALL)
    changed.norm = torch.nn.Identity()
    with pytest.raises(ValueError, match="was changed after create_model.*not by dynavit.swap_norms alone"):
        dynavit.save_pretrained(changed, tmp_path / "x")
    changed = dynavit.create_model("vit_micro", **SMALL)
    changed.norm = dynavit.create_norm("in", 32)  # has the shapes of the LayerNorm that stood there
    with pytest.raises(ValueError, match="was changed after create_model"):
        dynavit.save_pretrained(changed, tmp_path / "x")
    with pytest.raises(ValueError, match="a run knows its classes"):
        dynavit.save_pretrained(tmp_path, tmp_path / "x", classes=["a"])
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_replaced_only_if_it_is_ours(run, repository, tmp_path):
    folder = shutil.copytree(repository, tmp_path / "copy")
    with pytest.raises(ValueError, match="exists"):
        dynavit.save_pretrained(run, folder)
    dynavit.save_pretrained(run, folder, overwrite=True)
    (folder / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match=r"thesis\.tex"):
        dynavit.save_pretrained(run, folder, overwrite=True)
    assert (folder / "thesis.tex").read_text() == "mine" and is_repository(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x"), "was altered"),
        (lambda folder: (folder / "model.safetensors").unlink(), "is missing; copy the whole folder"),
        (lambda folder: edit(folder, model={"name": "vit_micor"}), "Did you mean 'vit_micro'"),
        (lambda folder: edit(folder, model={"name": "vit_micro", "pretrained": True, "norm": "dtn"}), "does not fit"),
        (lambda folder: edit(folder, classes=["a"]), "1 names of classes"),
        (lambda folder: edit(folder, swap={"version": 1, "rows": "x"}), "stored swap of norms does not fit"),
        (lambda folder: edit(folder, swap={"version": 9}), "swap plan of version 9"),
        (lambda folder: edit(folder, preprocess=None), "is damaged"),
    ],
)
def test_a_damaged_repository_is_named(repository, tmp_path, change, message):
    folder = shutil.copytree(repository, tmp_path / "copy")
    change(folder)
    with pytest.raises(ValueError, match=message):
        dynavit.load(folder)


def edit(folder, **fields):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))


def test_weights_are_chosen_when_saving(repository):
    with pytest.raises(ValueError, match="holds one set of weights"):
        dynavit.load(repository, weights="model")


# ---- A hub


class FakeHub(BaseHTTPRequestHandler):
    """As much of the hub's interface as one small model needs: make a repository, commit files, list and give them."""

    files: dict = {}  # noqa: RUF012
    commit = "0" * 40

    def answer(self, value, headers=()):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(200)
        for name, text in {"Content-Length": str(len(body)), **dict(headers)}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("/create"):
            self.answer({"url": f"http://{self.headers['Host']}/me/model"})
        elif "/preupload/" in self.path:
            asked = json.loads(body)["files"]
            self.answer({"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked]})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.answer(
                {"commitUrl": f"http://{self.headers['Host']}/me/model/commit/0", "commitOid": self.commit, "success": True}
            )
        else:
            self.answer({})

    def do_GET(self):
        if "/resolve/" in self.path:
            data = self.files[self.path.rpartition("/")[2]]
            self.answer(data, {"ETag": f'"{hash(data) & 0xFFFF:x}"', "X-Repo-Commit": self.commit})
        elif "/tree/" in self.path:
            sizes = {name: len(data) for name, data in self.files.items()}
            self.answer([{"type": "file", "path": name, "size": size, "oid": "0" * 40} for name, size in sizes.items()])
        else:
            siblings = [{"rfilename": name} for name in self.files]
            self.answer({"id": "me/model", "sha": self.commit, "siblings": siblings})

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch, tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeHub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)  # made of it at import
    monkeypatch.setattr("huggingface_hub.file_download.HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)  # before 1.0
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(FakeHub, "files", {})
    yield address
    server.shutdown()
    server.server_close()


def test_pushed_and_loaded_by_its_id(hub, run, monkeypatch, tmp_path):
    address = dynavit.push_to_hub(run, "me/model", token="hf_x")
    assert address == f"{hub}/me/model"
    assert set(FakeHub.files) == {"README.md", "config.json", "model.safetensors"}
    monkeypatch.chdir(tmp_path)
    assert same(dynavit.load("me/model"), dynavit.load(run))


def test_without_a_network_a_missing_directory_is_named_first(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ValueError, match="runs/typo is no directory here, and as a model of the hub it cannot be fetched"):
        dynavit.load("runs/typo")
    with pytest.raises(ValueError, match="called owner/name, got 'model'"):
        dynavit.push_to_hub(tmp_path, "model")


def test_commands_say_that_they_take_runs(repository, capsys):
    from dynavit.cli.main import main

    assert main(["eval", str(repository)]) == 2
    assert "is a Hugging Face repository, which commands do not take; in Python: dynavit.load(" in capsys.readouterr().err
