"""The OpenAPI document tells the truth about the gateway that serves it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import httpx
import pytest
import schemathesis
import schemathesis.checks
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

from .processes import Processes
from .running import MODEL
from .test_parameters import CHAT, COMPLETION, EMBEDDING

CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "unsupported_method",
]
OPERATIONS = [
    "POST /chat/completions",
    "POST /completions",
    "POST /embeddings",
    "POST /responses",
    "GET /responses/{id}",
    "DELETE /responses/{id}",
    "POST /responses/{id}/cancel",
    "GET /responses/{id}/input_items",
    "POST /messages",
    "POST /messages/count_tokens",
    "GET /openapi.json",
    "GET /models",
    "GET /models/{author}/{slug}",
    "GET /models/{author}/{slug}/endpoints",
]
POSTS = [
    "POST /chat/completions",
    "POST /completions",
    "POST /embeddings",
    "POST /responses",
    "POST /messages",  # whose body has all that /messages/count_tokens takes
]
REQUESTS = (
    "ChatRequest",
    "CompletionRequest",
    "EmbeddingRequest",
    "ResponsesResponsesRequest",
    "AnthropicMessagesRequest",
    "AnthropicCountRequest",
)

Operation = schemathesis.APIOperation[Any, Any, Any, Any]

explore = settings(
    max_examples=40,
    derandomize=True,  # the same examples everywhere, so that a failure can be repeated
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="session")
def document(shared_processes: Processes) -> dict[str, Any]:
    response = httpx.get(f"{shared_processes.base_url}/openapi.json")
    assert response.status_code == 200
    document: dict[str, Any] = response.json()
    return document


@pytest.fixture(scope="session")
def operations(shared_processes: Processes, document: dict[str, Any]) -> dict[str, Operation]:
    """The operations as schemathesis sees them, by their names.

    Requests name the one model that is there: what is wrong with the rest of them shows
    only then.
    """
    schemathesis.checks.load_all_checks()
    for name in REQUESTS:
        document["components"]["schemas"][name]["properties"]["model"] = {"const": MODEL}
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=shared_processes.base_url)
    found: list[Any] = list(schema.get_all_operations())
    return {result.ok().label: result.ok() for result in found}


def explored(operation: Operation, mode: GenerationMode, key: str, *more: str) -> Counter[int]:
    """Ask what the document allows (or forbids); returns how often each status came."""
    checks: list[Any] = [schemathesis.checks.CHECKS.get_one(name) for name in (*CHECKS, *more)]
    statuses: Counter[int] = Counter()

    @explore
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case[Any]) -> None:
        response = case.call(headers={"authorization": f"Bearer {key}"}, timeout=5)
        statuses[response.status_code] += 1
        case.validate_response(response, checks=checks)

    ask()
    return statuses


def test_every_operation_is_explored(operations: dict[str, Operation]):
    assert list(operations) == OPERATIONS


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_the_document_allows_is_answered_as_it_says(
    processes: Processes, operations: dict[str, Operation], name: str
):
    statuses = explored(operations[name], GenerationMode.POSITIVE, processes.key)
    if "{" not in name:
        assert statuses[200] > 0  # or the answers would not have been looked at
    assert set(statuses) <= {200, 400, 404}


@pytest.mark.parametrize("name", POSTS)
def test_what_the_document_forbids_is_refused(
    processes: Processes, operations: dict[str, Operation], name: str
):
    statuses = explored(
        operations[name], GenerationMode.NEGATIVE, processes.key, "negative_data_rejection"
    )
    assert statuses[400] > 0
    assert set(statuses) <= {200, 400, 401, 404}  # 200 where only a header was made up


def test_a_model_that_is_there_is_described_as_the_document_says(
    processes: Processes, operations: dict[str, Operation]
):
    author, slug = MODEL.split("/")
    for name in OPERATIONS[-2:]:
        case = operations[name].Case(path_parameters={"author": author, "slug": slug})
        response = case.call(timeout=5)
        assert response.status_code == 200
        check: Any = schemathesis.checks.CHECKS.get_one("response_schema_conformance")
        case.validate_response(response, checks=[check])


@pytest.mark.parametrize(
    ("schema", "table"),
    [("ChatRequest", CHAT), ("CompletionRequest", COMPLETION), ("EmbeddingRequest", EMBEDDING)],
)
def test_every_parameter_is_in_the_document(
    document: dict[str, Any], schema: str, table: dict[str, Any]
):
    described = document["components"]["schemas"][schema]
    assert set(table) <= set(described["properties"])
    assert described["additionalProperties"] is False


def references(value: Any) -> set[str]:
    """Every `$ref` in a document."""
    if isinstance(value, dict):
        found = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return found.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def test_every_reference_leads_somewhere_and_every_schema_is_used(document: dict[str, Any]):
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) == known


def test_the_document_names_no_address(document: dict[str, Any]):
    assert document["servers"] == [{"url": "/api/v1"}]
