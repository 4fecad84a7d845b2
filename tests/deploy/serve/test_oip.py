"""The Open Inference Protocol: plain JSON, binary tensors, and Triton's own client."""

import base64
import json
import struct

import numpy as np
import pytest

from deploy.serve.live import live
from deploy.serve.stub_model import CLASSES, picture, png
from dynavit.deploy.serve.bodies import LARGE

INFER = "/v2/models/stub/infer"


@pytest.fixture(scope="module")
def served():
    with live() as running:
        yield running


def infer(served, plain, tail=b"", path=INFER):
    head = json.dumps(plain).encode()
    headers = {"Content-Type": "application/json"}
    if tail:
        headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return served.ask("POST", path, head + tail, headers)


def images(*files, **parameters):
    data = [base64.b64encode(file).decode() for file in files]
    described = {"name": "image", "datatype": "BYTES", "shape": [len(files)], "parameters": {"content_type": "base64"}}
    return {"inputs": [{**described, "data": data}], "parameters": parameters}


def outputs(found):
    return {each["name"]: each["data"] for each in found["outputs"]}


def test_metadata_and_health(served):
    assert served.ask("GET", "/v2")[2]["extensions"] == ["dynavit_budget", "schedule_policy", "binary_tensor_data"]
    for path in ("/v2/health/live", "/v2/health/ready"):
        assert served.ask("GET", path)[2] == {"live": True, "ready": True}
    for path in ("/v2/models/stub", "/v2/models/stub/versions/v1"):
        found = served.ask("GET", path)[2]
        assert (found["name"], found["versions"]) == ("stub", ["v1"])
        assert found["inputs"][1] == {"name": "pixels", "datatype": "FP32", "shape": [-1, 1, 8, 8]}
        assert served.ask("GET", f"{path}/ready")[0] == 200
    for path in ("/v2/models/other", "/v2/models/stub/versions/v2", "/v2/models/other/ready"):
        assert served.ask("GET", path)[0] == 404
    assert infer(served, images(png()), path="/v2/models/other/infer")[0] == 404


def test_encoded_files_in_json(served):
    status, _, found = infer(served, images(png(0.85, label=1), png(0.1, 0.9, label=3)) | {"id": "seven"})
    assert (status, found["model_name"], found["model_version"], found["id"]) == (200, "stub", "v1", "seven")
    assert [(each["name"], each["datatype"], each["shape"]) for each in found["outputs"]] == [
        ("label", "INT64", [2]),
        ("name", "BYTES", [2]),
        ("confidence", "FP32", [2]),
        ("exit", "INT32", [2]),
        ("gmacs", "FP32", [2]),
    ]
    values = outputs(found)
    assert (values["label"], values["name"], values["exit"], values["gmacs"]) == ([1, 3], ["one", CLASSES[3]], [1, 2], [1, 2])
    assert values["confidence"] == pytest.approx([217 / 255, 230 / 255])


def test_prepared_pixels_give_the_same_answer(served):
    pixels = (np.asarray(picture(0.85, label=2), np.float32) / 255)[None, None]
    described = {"name": "pixels", "datatype": "FP32", "shape": [1, 1, 8, 8]}
    asked = {"outputs": [{"name": "probabilities"}, {"name": "label"}]}
    for data in (pixels.ravel().tolist(), pixels.tolist()):
        values = outputs(infer(served, {"inputs": [{**described, "data": data}], **asked})[2])
        assert values["label"] == [2] and len(values["probabilities"]) == 4 and list(values) == ["probabilities", "label"]
    binary = {**described, "parameters": {"binary_data_size": 256}}
    assert outputs(infer(served, {"inputs": [binary], **asked}, pixels.tobytes())[2]) == values


def test_budgets_among_the_parameters(served):
    image = png(0.1, 0.1, 0.9)
    for parameters, exit in (
        ({"budget_level": 0.0}, 1),
        ({"budget_gmacs": 4.0}, 3),
        ({"budget_accuracy": 0.8, "priority": 2}, 1),
        ({"max_exit": 2}, 2),
        ({"timeout": 10_000_000}, 3),
        ({"deadline_ms": 10_000}, 3),
    ):
        assert outputs(infer(served, images(image, **parameters))[2])["exit"] == [exit], parameters
    for parameters, code in (
        ({"budget_gmacs": 0.1}, "budget"),
        ({"budget_gmacs": 2, "budget_level": 1}, "budget"),
        ({"speed": 1}, "parameters"),
        ({"timeout": -1}, "timeout"),
        ({"priority": 1.5}, "priority"),
        ({"timeout": 1_000_000, "deadline_ms": "soon"}, "budget"),
        ({"timeout": 1_000_000, "deadline_ms": float("nan")}, "budget"),
    ):
        assert infer(served, images(image, **parameters))[2]["code"] == code


def test_one_failing_image_fails_the_request(served):
    status, _, found = infer(served, images(png(), b"no image"))
    assert status == 415 and isinstance(found["error"], str)
    served.settled()


@pytest.mark.parametrize(
    ("plain", "tail", "code"),
    [
        ({}, b"", "inputs"),
        ({"inputs": [7]}, b"", "object"),
        ({"inputs": [{"name": "image"}]}, b"", "inputs"),
        ({"inputs": [{"name": "image", "datatype": "BYTES", "shape": ["a"]}]}, b"", "shape"),
        ({"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1]}]}, b"", "data"),
        ({"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": ["text"]}]}, b"", "data"),
        ({"inputs": [{"name": "depth", "datatype": "FP32", "shape": [1], "data": [1]}]}, b"", "inputs"),
        (images(png()) | {"outputs": [{"name": "boxes"}]}, b"", "outputs"),
        (images(png()) | {"outputs": 1}, b"", "outputs"),
        (images(png()) | {"outputs": [{"name": ["label"]}]}, b"", "outputs"),
        (images(png()) | {"id": 1}, b"", "id"),
        (images(), b"", "shape"),
        (
            {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 9}}]},
            b"x",
            "binary",
        ),
        (images(png()), b"left over", "binary"),
        (
            {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 5}}]},
            struct.pack("<I", 100) + b"x",
            "data",
        ),
    ],
)
def test_requests_that_do_not_fit(served, plain, tail, code):
    status, _, found = infer(served, plain, tail)
    assert status in (400, 422) and found["code"] == code


def test_a_header_length_that_lies(served):
    for length in ("0", "-1", "x", "100000", "9" * 5000):
        headers = {"Inference-Header-Content-Length": length}
        assert served.ask("POST", INFER, b"{}", headers)[2]["code"] in ("header_length", "inputs")


def test_a_large_request(served):
    """Read beside the event loop; 32 images of which each has its answer."""
    pixels = np.stack([np.asarray(picture(0.85, label=at % 4), np.float32)[None] / 255 for at in range(32)])
    data = [f"{value:.9f}" for value in pixels.ravel()]
    described = {"name": "pixels", "datatype": "FP32", "shape": list(pixels.shape), "data": "DATA"}
    text = json.dumps({"inputs": [described]}).replace('"DATA"', "[" + ",".join(f"{number:>160}" for number in data) + "]")
    assert len(text) > LARGE
    status, _, found = served.ask("POST", INFER, text.encode(), {"Content-Type": "application/json"})
    assert status == 200 and outputs(found)["label"] == [at % 4 for at in range(32)]


@pytest.fixture(scope="module")
def triton(served):
    client_module = pytest.importorskip("tritonclient.http")
    client = client_module.InferenceServerClient(f"127.0.0.1:{served.port}")
    yield client_module, client
    client.close()


def test_tritons_client(triton):
    module, client = triton
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("stub")
    assert client.get_server_metadata()["name"] == "dynavit"
    assert client.get_model_metadata("stub")["outputs"][0]["name"] == "label"
    files = module.InferInput("image", [2], "BYTES")
    files.set_data_from_numpy(np.array([png(0.85, label=1), png(0.1, 0.9, label=2)], np.object_))  # in binary
    found = client.infer("stub", [files], request_id="abc")
    assert found.get_response()["id"] == "abc"
    assert found.as_numpy("label").tolist() == [1, 2] and found.as_numpy("exit").dtype == np.int32
    assert found.as_numpy("name").tolist() == [b"one", b"two"]
    assert found.as_numpy("confidence") == pytest.approx([217 / 255, 230 / 255])
    pixels = module.InferInput("pixels", [1, 1, 8, 8], "FP32")
    pixels.set_data_from_numpy((np.asarray(picture(0.2, 0.2, 0.9, label=3), np.float32) / 255)[None, None])
    wanted = [module.InferRequestedOutput("probabilities"), module.InferRequestedOutput("gmacs", binary_data=False)]
    found = client.infer("stub", [pixels], outputs=wanted, parameters={"max_exit": 1}, priority=3, timeout=5_000_000)
    assert found.as_numpy("probabilities").shape == (1, 4) and found.as_numpy("gmacs").tolist() == [1.0]
    with pytest.raises(
        module.InferenceServerException if hasattr(module, "InferenceServerException") else Exception, match="no parameter"
    ):
        client.infer("stub", [pixels], parameters={"speed": 1})
