"""The OpenAPI document names every route, and is one that programs can read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.server.management import get
from tests.support.process import BrokerProcess

PATH = "tallymark/openapi.json"


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with BrokerProcess(Path(tmp_path_factory.mktemp("openapi")) / "data") as broker:
        yield get(broker, PATH)


def _operations(document: Any) -> list[tuple[str, str, Any]]:
    return [
        (path, method, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]


def test_every_route_is_in_it(document: Any) -> None:
    found = {(path, method) for path, method, _ in _operations(document)}
    for known in (
        ("/api/overview", "get"), ("/api/queues/{vhost}/{name}", "put"), (f"/api/{PATH}", "get"),
        ("/api/queues/{vhost}/{name}/get", "post"), ("/healthz", "get"), ("/metrics", "get"),
        ("/api/users/{user}", "delete"), ("/api/tallymark/queues", "get"),
    ):  # fmt: skip
        assert known in found


def test_every_name_in_a_path_is_a_parameter(document: Any) -> None:
    for path, _, operation in _operations(document):
        named = [one["name"] for one in operation["parameters"] if one.get("in") == "path"]
        assert named == re.findall(r"{(\w+)}", path), path


def test_every_reference_leads_somewhere(document: Any) -> None:
    for _, _, operation in _operations(document):
        places = [*operation["parameters"], *operation["responses"].values()]
        for place in places:
            found = document
            for step in place.get("$ref", "#").split("/")[1:]:
                found = found[step]
            assert found


def test_operations_have_names_of_their_own(document: Any) -> None:
    names = [operation["operationId"] for _, _, operation in _operations(document)]
    assert len(set(names)) == len(names)
    summaries = {operation.get("summary") for _, _, operation in _operations(document)}
    assert "Return the OpenAPI document" in summaries
