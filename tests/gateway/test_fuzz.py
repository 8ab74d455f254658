"""Arbitrary bodies: every answer is a typed error or a valid answer, and comes in time."""

from __future__ import annotations

import copy
import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from .processes import Processes
from .running import MESSAGES, MODEL
from .test_parameters import CHAT, NEEDS, REFUSED, TOOL, TURNS

PATHS = ["/chat/completions", "/completions", "/embeddings"]
PATIENCE = 5  # seconds; beyond it a request counts as hanging

fuzz = settings(
    max_examples=120,
    derandomize=True,  # the same examples everywhere, so that a failure can be repeated
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Client:
    """One connection to the gateway, kept as long as the gateway keeps it."""

    def __init__(self, processes: Processes) -> None:
        parts = urlsplit(processes.base_url)
        self._base = parts.path
        self._fields = {"authorization": f"Bearer {processes.key}"}
        self._connection = http.client.HTTPConnection(parts.netloc, timeout=PATIENCE)

    def post(self, path: str, body: bytes) -> tuple[int, str, bytes]:
        self._connection.request("POST", self._base + path, body, self._fields)
        response = self._connection.getresponse()
        return response.status, response.headers["content-type"], response.read()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def client(processes: Processes) -> Iterator[Client]:
    client = Client(processes)
    yield client
    client.close()


def check(client: Client, path: str, body: bytes) -> int:
    """Send a body and look at the answer; returns its status."""
    status, kind, data = client.post(path, body)
    assert status in (200, 400, 404)
    if status == 200 and kind.startswith("text/event-stream"):
        assert data.endswith(b"data: [DONE]\n\n")
        assert b'"error"' not in data
    elif status == 200:
        assert json.loads(data)["model"] in (MODEL, "acme/vision-2")
    else:
        error = json.loads(data)["error"]
        assert isinstance(error["message"], str)
        assert error["message"]
        assert error["type"] == "invalid_request_error"
        assert isinstance(error["code"], str)
        assert len(data) < 4096
    return status


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["", "text", "auto", "function", "image_url", "user", MODEL, 2**63, 1e308])
)
names = st.sampled_from([*CHAT, "prompt", "input", "role", "content", "type", "function", "name"])
documents = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(names | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=12,
)


def encode(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


@fuzz
@given(path=st.sampled_from(PATHS), document=documents)
def test_any_json_is_answered(client: Client, path: str, document: Any):
    check(client, path, encode(document))


@fuzz
@given(path=st.sampled_from(PATHS), body=st.binary(max_size=300))
@example(path=PATHS[0], body=b"")
def test_any_bytes_are_answered(client: Client, path: str, body: bytes):
    check(client, path, body)


def everything() -> dict[str, Any]:
    """A chat request with every parameter that is honoured."""
    request: dict[str, Any] = {
        "model": MODEL, "messages": MESSAGES, "tools": [TOOL], "top_k": 5, "min_p": 0.1,
        "repetition_penalty": 1.1, "usage": {"include": True},
    }  # fmt: skip
    for name, (fate, value) in CHAT.items():
        if fate != REFUSED and name != "max_completion_tokens":
            request |= {**NEEDS.get(name, {}), name: value}
    return request


VALID: list[tuple[str, dict[str, Any]]] = [
    ("/chat/completions", everything()),
    *(("/chat/completions", {"model": MODEL, "messages": turns}) for turns in TURNS.values()),
    ("/completions", {"model": MODEL, "prompt": ["a", "b"], "logprobs": 2, "n": 2}),
    ("/completions", {"model": MODEL, "prompt": [[1, 2], [3]], "stop": ["x"]}),
    ("/completions", {"model": MODEL, "prompt": "x", "stream": True, "seed": 1}),
    ("/embeddings", {"model": MODEL, "input": ["a", "b"], "encoding_format": "base64"}),
]


def test_what_is_mutated_below_is_valid(client: Client):
    for path, request in VALID:
        assert check(client, path, encode(request)) == 200


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every member of a document."""
    members = value.items() if isinstance(value, dict) else enumerate(value)
    for key, member in members:
        yield (*place, key)
        if isinstance(member, dict | list):
            yield from places(member, (*place, key))


@st.composite
def mutants(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A valid request with one to three members replaced, removed, repeated or added."""
    path, request = copy.deepcopy(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(1, 3))):
        *parents, key = draw(st.sampled_from(list(places(request))))
        holder: Any = request
        for parent in parents:
            holder = holder[parent]
        match draw(st.sampled_from(["replace", "remove", "repeat", "add"])):
            case "replace":
                holder[key] = draw(documents)
            case "remove":
                del holder[key]
            case "repeat" if isinstance(holder[key], list):
                holder[key] = holder[key][:3] * draw(st.integers(2, 100))
            case "repeat" if isinstance(holder[key], str):
                holder[key] = holder[key][:9] * draw(st.integers(2, 200))
            case _ if isinstance(holder, dict):
                holder[draw(names)] = draw(documents)
            case _:
                holder.append(draw(documents))
        if not request:
            break
    return path, request


@settings(fuzz, max_examples=400)
@given(mutant=mutants())
def test_a_request_that_is_almost_valid_is_answered(
    client: Client, mutant: tuple[str, dict[str, Any]]
):
    path, request = mutant
    check(client, path, encode(request))


@fuzz
@given(
    request=st.sampled_from(VALID),
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=3),
    cut=st.integers(0, 10**6),
)
def test_a_request_with_bytes_turned_or_cut_off_is_answered(
    client: Client,
    request: tuple[str, dict[str, Any]],
    flips: list[tuple[int, int]],
    cut: int,
):
    path, document = request
    body = bytearray(encode(document))
    for place, byte in flips:
        body[place % len(body)] = byte
    check(client, path, bytes(body))
    check(client, path, bytes(body[: cut % len(body)]))
