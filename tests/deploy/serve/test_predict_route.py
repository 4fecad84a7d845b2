"""The three ways to send images, answers, budgets, sweeps and maps."""

import base64
import json

import pytest

from deploy.serve.live import eventually, in_background, live
from deploy.serve.stub_model import CLASSES, GMACS, POINTS, picture, png
from dynavit.deploy.serve import schemas
from dynavit.deploy.serve.limits import Limits


@pytest.fixture(scope="module")
def served():
    with live(explainer=lambda entry, exit: {"grid": [1, 1], "attention": [[1.0]], "change": None}) as running:
        yield running


def encoded(image):
    return base64.b64encode(image).decode()


def as_json(served, value, path="/v1/predict"):
    return served.ask("POST", path, json.dumps(value).encode(), {"Content-Type": "application/json"})


def form(*parts):
    """A body of multipart/form-data: (name, file name or None, bytes)."""
    lines = []
    for name, file, data in parts:
        named = f'; filename="{file}"' if file else ""
        lines += [b"--frontier", f'Content-Disposition: form-data; name="{name}"{named}'.encode(), b"", data]
    return b"\r\n".join([*lines, b"--frontier--", b""]), {"Content-Type": "multipart/form-data; boundary=frontier"}


def test_one_image_as_the_body(served):
    status, headers, found = served.predict(png(0.85, label=2), "?top=2")
    assert status == 200 and schemas.Predicted.model_validate(found)
    (result,) = found["results"]
    assert (result["label"], result["name"], result["exit"], result["why"]) == (2, "two", 1, "confident")
    assert result["confidence"] == pytest.approx(217 / 255) and len(result["top"]) == 2
    assert result["exits"] == [{"exit": 1, "label": 2, "confidence": pytest.approx(217 / 255), "threshold": 0.8, "gmacs": 1.0}]
    assert result["cost"]["gmacs"] == 1.0 and result["cost"]["batch"] == [1]
    assert found["budget"]["source"] == "server" and found["budget"]["asked"] is None
    assert found["request_id"] == headers["x-request-id"] and "probabilities" not in result


def test_an_image_that_is_not_sure_goes_on(served):
    _, _, found = served.predict(png(0.5, 0.6, 0.9, label=1))
    (result,) = found["results"]
    assert (result["exit"], result["why"], result["cost"]["gmacs"]) == (3, "last", GMACS[2])
    assert [exit["threshold"] for exit in result["exits"]] == [0.8, 0.7, None]


def test_several_images_as_json_in_their_order(served):
    images = [{"b64": encoded(png(0.9, label=k)), "id": f"n{k}"} for k in range(4)]
    images.insert(2, {"b64": encoded(b"no image")})
    status, _, found = as_json(served, {"images": images, "probabilities": True, "budget": {"level": 1.0}})
    assert status == 200 and schemas.Predicted.model_validate(found)
    assert [each["id"] for each in found["results"]] == ["n0", "n1", None, "n2", "n3"]
    assert [each.get("label") for each in found["results"]] == [0, 1, None, 2, 3] and found["failed"] == 1
    assert found["results"][2]["status"] == 415 and found["results"][2]["code"] == "format"
    assert found["results"][0]["exit"] == 3 and sum(found["results"][0]["probabilities"]) == pytest.approx(1)
    assert found["budget"] == {
        "asked": {"level": 1.0},
        "applied": {"thresholds": [1e8, 1e8], "max_exit": 3, "expected_gmacs": 4.0, "expected_accuracy": 0.95},
        "source": "request",
        "clipped": False,
    }


def test_several_images_as_a_form(served):
    options = json.dumps({"budget": {"max_exit": 1}, "top": 3}).encode()
    body, headers = form(("image", "a.png", png(0.3)), ("options", None, options), ("image", "../b.png", png(0.4, label=3)))
    status, _, found = served.ask("POST", "/v1/predict", body, headers)
    assert status == 200
    assert [(each["id"], each["exit"], each["why"]) for each in found["results"]] == [
        ("a.png", 1, "cap"),
        ("../b.png", 1, "cap"),
    ]
    assert found["results"][1]["name"] == CLASSES[3] and len(found["results"][0]["top"]) == 3
    assert found["budget"]["source"] == "server"  # a limit alone leaves the target to the server


@pytest.mark.parametrize(
    ("value", "status", "code"),
    [
        ({"images": []}, 422, "images"),
        ({"images": [{"b64": "***"}]}, 422, "base64"),
        ({"images": [{"path": "/etc/passwd"}]}, 422, "images"),
        ({"images": [{"url": "http://localhost/"}]}, 422, "images"),
        ({"images": [{"b64": "", "id": 7}]}, 422, "images"),
        ({"images": [{"b64": ""}] * 33}, 413, "too_many_images"),
        ({"images": [{"b64": encoded(png())}], "top": 11}, 422, "top"),
        ({"images": [{"b64": encoded(png())}], "top": True}, 422, "top"),
        ({"images": [{"b64": encoded(png())}], "budget": [1]}, 422, "budget"),
        ({"images": [{"b64": encoded(png())}], "temperature": 1}, 422, "field"),
        ({"images": [{"b64": encoded(png()), "id": "half a letter \ud800"}]}, 422, "images"),
        ([], 422, "images"),
        ({"images": [[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]}, 422, "json_depth"),
    ],
)
def test_json_that_does_not_fit(served, value, status, code):
    found = as_json(served, value)
    assert (found[0], found[2]["code"]) == (status, code)
    assert schemas.Error.model_validate(found[2])


@pytest.mark.parametrize(
    ("body", "kind", "status", "code"),
    [
        (b"{", "application/json", 400, "json"),
        (b"[" * 100_000, "application/json", 400, "json"),
        (b"\xff", "application/json", 400, "json"),
        (b'{"images": [{"b64": ""}], "budget": {"level": 0, "level": 1}}', "application/json", 400, "json"),
        (b"no form", "multipart/form-data; boundary=x", 400, "multipart"),
        (b"no form", "multipart/form-data", 400, "multipart"),
        (form(("file", "a.png", b""))[0], "multipart/form-data; boundary=frontier", 422, "field"),
        (form(("options", None, b"7"))[0], "multipart/form-data; boundary=frontier", 422, "options"),
        (png(), "text/html", 415, "content_type"),
        (png(), "", 415, "content_type"),
    ],
)
def test_bodies_that_do_not_fit(served, body, kind, status, code):
    found = served.ask("POST", "/v1/predict", body, {"Content-Type": kind})
    assert (found[0], found[2]["code"]) == (status, code)


def test_a_compressed_body_is_refused_by_its_header(served):
    """It would be a way around the limit on bodies."""
    for encoding, status in (("gzip", 415), ("deflate, gzip", 415), ("identity", 200), ("Identity", 200)):
        found = served.predict(png(), **{"Content-Encoding": encoding})
        assert found[0] == status
        assert status == 200 or (found[2]["code"], found[1]["accept-encoding"]) == ("content_encoding", "identity")


def test_a_query_goes_with_one_image(served):
    body, headers = form(("image", "a.png", png()))
    assert served.ask("POST", "/v1/predict?level=1", body, headers)[2]["code"] == "query"
    assert served.predict(png(), "?top=0")[2]["code"] == "top"
    assert served.predict(png(), "?probabilities=maybe")[2]["code"] == "probabilities"
    assert served.predict(png(), "?speed=1")[2]["code"] == "budget"
    assert served.predict(png(), "?level=0&level=1")[2]["code"] == "query"
    assert served.ask("POST", "/v1/explain?exit=1&exit=2", png(), {"Content-Type": "image/png"})[2]["code"] == "query"


@pytest.mark.parametrize("kind", ["image/png", "IMAGE/PNG; charset=x", "image/jpg", "image/*", "application/octet-stream"])
def test_the_content_says_which_image_it_is(served, kind):
    assert served.ask("POST", "/v1/predict", png(0.85, label=2), {"Content-Type": kind})[2]["results"][0]["label"] == 2


@pytest.mark.parametrize(
    ("name", "charset", "told"),
    [("\u732b.png", "utf-8", "\u732b.png"), ("+2AA-.png", "utf-7", "?.png"), ("\\ud800.png", "unicode_escape", "?.png")],
)
def test_names_of_files_in_any_letters(served, name, charset, told):
    """Also those that no answer could repeat."""
    body, headers = form(("image", name, png()))
    headers["Content-Type"] += f"; charset={charset}"
    status, _, found = served.ask("POST", "/v1/predict", body, headers)
    assert status == 200 and found["results"][0]["id"] == told


def test_a_sweep_runs_all_exits_and_tells_every_level(served):
    status, _, found = served.ask("POST", "/v1/sweep", png(0.6, 0.75, 0.99, label=1), {"Content-Type": "image/png"})
    assert status == 200 and schemas.Swept.model_validate(found)
    assert [exit["confidence"] for exit in found["exits"]] == pytest.approx([153 / 255, 191 / 255, 252 / 255])
    assert [exit["gmacs"] for exit in found["exits"]] == [1.0, 1.0, 2.0]
    assert [level["exit"] for level in found["levels"]] == [1, 1, 2, 3]
    assert [level["cost_gmacs"] for level in found["levels"]] == [1.0, 1.0, 2.0, 4.0]
    for level, point in zip(found["levels"], POINTS, strict=True):
        _, _, alone = served.predict(png(0.6, 0.75, 0.99, label=1), f"?level={level['level']}")
        assert alone["results"][0]["exit"] == level["exit"] and tuple(level["thresholds"]) == point.thresholds
    assert as_json(served, {"images": [{"b64": encoded(png())}] * 2}, "/v1/sweep")[2]["code"] == "images"


def test_maps(served):
    status, _, found = served.ask("POST", "/v1/explain?exit=2", png(), {"Content-Type": "image/png"})
    assert (status, found["grid"], found["exit"]) == (200, [1, 1], 2) and schemas.Explained.model_validate(found)
    for query in ("exit=0", "exit=4", "exit=x", "exit=²", "exit=1&level=1"):
        assert served.ask("POST", f"/v1/explain?{query.replace('²', '%C2%B2')}", png(), {"Content-Type": "image/png"})[0] == 422


def test_without_an_explainer_there_are_no_maps():
    with live() as plain:
        assert plain.ask("POST", "/v1/explain", png(), {"Content-Type": "image/png"})[2]["code"] == "no_explainer"
        assert plain.ask("GET", "/v1/info")[2]["explain"] is False


def test_clipped_to_the_operators_range():
    with live(budget="level=0", budget_range="gmacs=1.6,accuracy=0.93") as narrow:
        _, _, found = narrow.predict(png(0.6), "?level=1")
        assert found["budget"]["clipped"] and found["budget"]["applied"]["thresholds"] == [0.8, 0.7]
        _, _, found = narrow.predict(png(0.6))
        assert found["budget"]["clipped"] and found["results"][0]["exit"] == 1


def test_a_brown_out_needs_operator_and_request():
    with live(limits=Limits(max_queue=4, max_images=4), degrade_to=0.0) as server:
        server.backend.gate.clear()
        waiting = in_background(2, lambda at: server.predict(png(0.3, 0.9)))
        eventually(lambda: server.snapshot()["jobs"] == 2)
        more = in_background(2, lambda at: server.predict(png(0.3, 0.9), "?degrade=true" if at else ""))
        eventually(lambda: server.snapshot()["jobs"] == 4)
        server.backend.gate.set()
        assert [found["results"][0]["why"] for _, _, found in waiting()] == ["confident"] * 2
        assert [found["results"][0]["why"] for _, _, found in more()] == ["confident", "degraded"]


def test_pictures_are_what_the_stub_says():
    assert picture(0.5, label=3).getpixel((0, 1)) == 3
