"""The OpenAPI document is kept: no request makes a 5xx, and every answer is as described."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from ledger.accounts.registry import ACCOUNTS
from ledger.open_log import open_log
from tests.assembled import RUN, group_id, trajectory_id
from tests.lived_runs import lived
from tests.serving import Served, serving

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("schema")
    url = f"sqlite:///{folder / 'log.db'}"
    with open_log(url) as log:
        lived(log)
    with serving(url, folder) as served:
        served.caught_up()
        yield served


@pytest.fixture(scope="module")
def document(served: Served) -> Any:
    """The interface, without the stream, which never ends."""
    document = served.ask("/openapi.json").json
    document["paths"].pop("/v1/stream")
    return document


@pytest.fixture
def interface(served: Served, document: Any) -> Any:
    loaded = schemathesis.openapi.from_dict(document)
    loaded.config.update(base_url=served.url)
    return loaded


def test_any_request_gets_an_answer_of_its_description(interface: Any, served: Served) -> None:
    headers = {"Authorization": f"Bearer {served.token}"}
    tried: list[str] = []
    for found in interface.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=4,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def holds(case: schemathesis.Case) -> None:
            case.call_and_validate(headers=headers, checks=CHECKS)

        holds()
        tried.append(operation.label)
    assert len(tried) > 20


def test_what_is_there_is_answered_as_described(interface: Any, served: Served) -> None:
    batch = served.ask("/v1/batches").json["rows"][0]["batch_id"]
    asked: dict[str, list[dict[str, Any]]] = {
        "/v1/runs/{run_id}": [{"run_id": RUN}],
        "/v1/groups/{group_id}": [{"group_id": group_id(n)} for n in range(12)],
        "/v1/trajectories/{trajectory_id}": [{"trajectory_id": trajectory_id(1, 2)}],
        "/v1/batches/{batch_id}": [{"batch_id": batch}],
        "/v1/rules/{number}": [{"number": 1}, {"number": 2}],
        "/v1/accounts/{account}": [{"account": each.name} for each in ACCOUNTS],
    }
    compared = [{"account": "step-time", "a": RUN, "b": RUN}]
    for path, cases in {**asked, "/v1/compare": compared}.items():
        for parameters in cases:
            where = "query" if path == "/v1/compare" else "path_parameters"
            case = interface[path]["GET"].Case(**{where: parameters})
            answer = case.call(headers={"Authorization": f"Bearer {served.token}"})
            assert answer.status_code == 200, (path, parameters, answer.text[:500])
            case.validate_response(answer, checks=CHECKS)
