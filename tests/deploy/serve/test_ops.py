"""Files for operators: form, probes that exist, options that parse, and the command line as a user who may write nowhere.

No cluster and no container engine is at hand, so this is what can be known without.
"""

import json
import os
import pwd
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
import yaml

from deploy.serve.live import PATIENCE, live
from dynavit.cli.parse import parse_options
from dynavit.cli.serve import serve

OPS = Path(__file__).parents[3] / "ops"
RUNTIME, SERVICE = yaml.safe_load_all((OPS / "kserve.yaml").read_text())
(CONTAINER,) = RUNTIME["spec"]["containers"]
PREDICTOR = SERVICE["spec"]["predictor"]


def instructions():
    """(word, rest) of each line of the container file."""
    lines = re.sub(r"\\\n", " ", (OPS / "Containerfile").read_text()).splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line.strip() and not line.startswith("#")]


def test_the_runtime_and_the_service_fit_each_other():
    assert RUNTIME["kind"] == "ServingRuntime" and SERVICE["kind"] == "InferenceService"
    assert RUNTIME["spec"]["supportedModelFormats"][0]["name"] == PREDICTOR["model"]["modelFormat"]["name"] == "dynavit"
    assert RUNTIME["spec"]["protocolVersions"] == [PREDICTOR["model"]["protocolVersion"]] == ["v2"]
    assert "batcher" not in PREDICTOR
    assert "image" in CONTAINER and CONTAINER["name"] == "kserve-container"  # the name that KServe looks for


def test_options_of_the_command_lines_exist():
    words = dict(instructions())
    assert json.loads(words["ENTRYPOINT"]) == ["dynavit", "serve"]
    for given in (json.loads(words["CMD"]), CONTAINER["args"]):
        options = parse_options(serve, given, "dynavit serve")
        assert options["settings"].host == "0.0.0.0" and options["settings"].port == CONTAINER["ports"][0]["containerPort"]
        assert str(options["run"]) == "/mnt/models"


def test_draining_has_time():
    options = parse_options(serve, CONTAINER["args"], "dynavit serve")
    (_, wait) = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    assert (
        PREDICTOR["terminationGracePeriodSeconds"]
        >= options["limits"].drain_time + 10
        > options["limits"].drain_time + int(wait)
    )


def test_nothing_runs_with_privileges():
    rules = CONTAINER["securityContext"]
    assert rules["runAsNonRoot"] and rules["readOnlyRootFilesystem"] and not rules["allowPrivilegeEscalation"]
    assert rules["capabilities"] == {"drop": ["ALL"]}
    user = dict(instructions())["USER"].split(":")[0]
    assert int(user) == rules["runAsUser"] != 0
    assert CONTAINER["env"][0]["name"] == "DYNAVIT_TOKEN" and "value" not in CONTAINER["env"][0]  # from a secret


def test_probes_are_answered():
    with live() as server:
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            where = CONTAINER[probe]["httpGet"]
            assert server.ask("GET", where["path"])[0] == 200 and where["port"] == CONTAINER["ports"][0]["containerPort"]


def test_the_container_installs_what_serving_needs():
    """Every library that the extra names; versions come from constraints.txt."""
    import tomllib

    text = (OPS / "Containerfile").read_text()
    assert "-c constraints.txt" in text and "torch" not in text.replace("without torch", "")

    extras = tomllib.loads((OPS.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for requirement in extras["serve"]:
        assert re.split(r"[>=\[]", requirement)[0] in text


def test_rays_file_names_what_exists():
    from importlib import import_module

    plain = yaml.safe_load((OPS / "ray.yaml").read_text())
    (app,) = plain["applications"]
    module, name = app["import_path"].split(":")
    assert callable(getattr(import_module(module), name))
    from dynavit.deploy.serve.limits import Limits

    Limits(**app["args"]["limits"]).check()
    assert app["deployments"][0]["user_config"] == {"budget": None}


# The interpreter may lie where another user cannot read, so everything is imported first, by --check.
AS_ANOTHER = """import os, sys
from dynavit.cli.main import main
words = sys.argv[1:]
sys.stdout, out = sys.stderr, sys.stdout
assert main([*words, "--check"]) == 0
sys.stdout = out
os.setgroups([])
os.setgid({uid})
os.setuid({uid})
assert not os.access(".", os.W_OK)
sys.exit(main([*words, "--quiet"]))"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_command_line_as_another_user_in_a_read_only_directory(tmp_path):
    """The container's command, with a bundle that cannot be written and no place for temporary files."""
    bundle = tmp_path / "models"
    make_bundle(bundle)
    nobody = pwd.getpwnam("nobody")
    for path in (tmp_path, *tmp_path.parents):
        if path.is_relative_to("/tmp") and path != Path("/tmp"):
            path.chmod(0o555 if path == tmp_path else 0o755)
    given = [word if word != "/mnt/models" else str(bundle) for word in json.loads(dict(instructions())["CMD"])]
    given[given.index("8080")] = "0"
    words = [sys.executable, "-c", AS_ANOTHER.format(uid=nobody.pw_uid), "serve", *given]
    keys = {
        "DYNAVIT_TOKEN": "a-token-of-some-length",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(tmp_path),
        "HOME": "/nonexistent",
    }
    environment = {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH", "OMP_NUM_THREADS")}
    how = {"cwd": tmp_path, "env": {**environment, **keys}, "text": True}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)
    try:
        line = process.stdout.readline()
        assert "http://127.0.0.1:" in line, f"{shlex.join(words)}\n{process.stderr.read()}"
        url = line.split()[-1]
        key = {"Authorization": "Bearer a-token-of-some-length"}
        with urlopen(f"{url}/v2/health/ready", timeout=PATIENCE) as answer:
            assert answer.status == 200
        with urlopen(Request(f"{url}/v1/info", headers=key), timeout=PATIENCE) as answer:
            assert json.load(answer)["exits"]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
        tmp_path.chmod(0o755)
    # onnxruntime leaves an id of its session among temporary files when it is imported, where it can: here by --check, as root.
    assert {path.name for path in tmp_path.iterdir()} - {".ses"} == {"models"}


def make_bundle(directory):
    import torch

    from dynavit.deploy.bundle.manifest import write_manifest
    from dynavit.deploy.export.write_model import write_model

    directory.mkdir()
    preprocess = {"kind": "memory", "stored_size": [8, 8], "image_size": [8, 8], "mean": [0.5], "std": [0.5]}
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3)).eval()
    facts = write_model(model, directory, (1, 8, 8), ["a", "b", "c"], format="onnx", policy=None)
    write_manifest(directory, {**facts, "preprocess": preprocess})
