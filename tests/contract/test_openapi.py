"""The committed description of the HTTP API is the one that the code makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from litestar.handlers import get
from openapi_spec_validator import OpenAPIV31SpecValidator

from services.gateway.http.application import (
    ContractMissing,
    declared,
    description,
    litestar_app,
    require_contracts,
)
from services.gateway.http.docs import CONTENT_SECURITY_POLICY, render
from services.gateway.http.ports import Ports
from services.gateway.ops import openapi_text

ROOT = Path(__file__).resolve().parents[2]
PORTS = Ports(*[None] * 8, "0" * 64, None)  # type: ignore[arg-type]


def operations() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method.upper()} {path}", operation)
        for path, methods in description()["paths"].items()
        for method, operation in methods.items()
    ]


def test_the_committed_document_is_the_generated_one() -> None:
    assert (ROOT / "docs" / "openapi.json").read_text() == openapi_text(), (
        "write it again: python -m services.gateway openapi"
    )


def test_the_document_is_valid_openapi_3_1() -> None:
    document = description()
    assert document["openapi"] == "3.1.0"
    OpenAPIV31SpecValidator(document).validate()


def test_the_document_describes_every_route_that_is_served() -> None:
    served = {
        f"{method} {path.replace(':str', '')}"
        for method, path, _ in declared(litestar_app(PORTS, {}))
        if path.startswith("/api/v1/")
    }
    described = {name for name, _ in operations()}
    assert served - described == {"GET /api/v1/docs", "GET /api/v1/openapi.json"}
    assert described <= served


@pytest.mark.parametrize(("name", "operation"), operations())
def test_every_route_says_what_it_does_and_how_it_refuses(
    name: str, operation: dict[str, Any]
) -> None:
    assert operation["summary"], name
    assert "Needs" in operation["description"] or "need" in operation["description"], name
    assert {"401", "403", "422", "503"} <= set(operation["responses"])
    for parameter in operation["parameters"]:
        assert "schema" in parameter


def test_every_body_has_an_example_that_its_model_takes() -> None:
    document = description()
    for name, operation in operations():
        if "requestBody" not in operation:
            continue
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        named = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]]
        if "examples" not in named:
            named = document["components"]["schemas"]["CloudEventIn"]
        assert named["examples"], name


def test_a_route_without_a_contract_stops_the_start() -> None:
    @get("/forgotten")
    async def forgotten() -> None: ...

    app = litestar_app(PORTS, {})
    require_contracts(app)
    app.register(forgotten)
    with pytest.raises(ContractMissing, match="GET /forgotten"):
        require_contracts(app)


def test_the_docs_page_needs_no_script_and_no_other_server() -> None:
    page = render(description())
    assert "<script" not in page
    assert "http://" not in page
    assert "https://" not in page
    assert "default-src 'none'" in CONTENT_SECURITY_POLICY
    for _, operation in operations():
        assert operation["operationId"] in page


def test_the_docs_page_escapes_what_it_shows() -> None:
    document = json.loads(json.dumps(description()))
    document["info"]["title"] = "<script>alert(1)</script>"
    document["components"]["schemas"]["<b>"] = {"description": "</pre><b>"}
    page = render(document)
    assert "<script>alert" not in page
    assert "</pre><b>" not in page
