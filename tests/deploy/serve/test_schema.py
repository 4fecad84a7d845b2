"""The OpenAPI file, and requests that schemathesis makes up from it: no answer that it does not describe, no 5xx."""

import re

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from deploy.serve.live import live
from deploy.serve.stub_model import png
from dynavit.deploy.serve.limits import Limits

DEADLINES = ("would_miss_deadline", "deadline")


def only_refusals(context, response, case):
    """No 5xx, but where a deadline was asked for that cannot be met."""
    assert response.status_code < 500 or response.json()["code"] in DEADLINES, response.json()


CHECKS = (
    only_refusals,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)
ENDLESS = "/v1/stream"  # an answer without end; see test_faults_load


@pytest.fixture(scope="module")
def served():
    with live(limits=Limits(header_time=30.0), explainer=lambda entry, exit: _map()) as running:
        yield running


def _map():
    return {"grid": [1, 1], "attention": [[1.0]], "change": None}


def operations(served):
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{served.port}/openapi.json")
    return [operation.ok() for operation in schema.get_all_operations() if operation.ok().path != ENDLESS]


def try_all(served, examples, chosen=None):
    """Ask each operation, or the chosen ones, with so many made-up requests; how many there were."""
    counts = {}
    how = {"max_examples": examples, "deadline": None, "database": None, "derandomize": True}
    for operation in operations(served):
        if chosen and operation.label not in chosen:
            continue

        def ask(case):
            counts[case.operation.label] = counts.get(case.operation.label, 0) + 1
            case.call_and_validate(checks=CHECKS)

        for mode in schemathesis.GenerationMode:  # requests that fit, and requests that do not
            made_up = given(case=operation.as_strategy(generation_mode=mode))(ask)
            try:
                settings(**how, suppress_health_check=list(HealthCheck))(made_up)()
            except Unsatisfiable:
                assert mode is schemathesis.GenerationMode.NEGATIVE  # a GET without parameters cannot be wrong
    return counts


def test_made_up_requests(served):
    chosen = {"POST /v1/predict", "PUT /v1/budget", "POST /v2/models/{name}/infer"}
    assert set(try_all(served, 3, chosen)) == chosen
    assert served.predict(png())[0] == 200


@pytest.mark.slow
def test_many_made_up_requests(served):
    counts = try_all(served, 60)
    assert len(counts) >= 16 and counts["POST /v1/predict"] >= 60
    assert served.predict(png())[0] == 200


def test_the_file_describes_what_there_is(served):
    plan = served.ask("GET", "/openapi.json")[2]
    assert set(plan["paths"]) >= {
        *("/v1/info", "/v1/curve", "/v1/predict", "/v1/sweep", "/v1/explain", "/v1/stats", "/v1/stream", "/v1/budget"),
        *("/metrics", "/v1/samples", "/v2", "/v2/models/{name}/infer", "/v2/health/ready"),
    }
    assert set(plan["paths"]["/v1/predict"]["post"]["requestBody"]["content"]) == {
        *("image/jpeg", "image/png", "image/webp", "application/json", "multipart/form-data")
    }
    names = set(plan["components"]["schemas"])
    text = str(plan)
    assert set(re.findall(r"#/components/schemas/(\w+)", text)) <= names
    for path in ("/docs", "/redoc"):
        assert served.ask("GET", path)[0] == 404
