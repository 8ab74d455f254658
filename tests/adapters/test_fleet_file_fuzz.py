"""Whatever a fleet file holds, and whatever an operator sends: a fleet, or what is wrong."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prime_inference.adapters.files.fleet_file import FleetEntries, FleetFile
from prime_inference.adapters.files.ready_fleet import ReadyFleet
from prime_inference.compose import ENGINE_PARAMETERS
from prime_inference.domain.fleet import MOST_SLOTS, Fleet, FleetInvalid
from prime_inference.fleet.errors import FleetError
from prime_inference.fleet.fleet import read_fleet

FUZZ = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
ENTRIES: dict[str, Any] = {
    "models": [{
        "id": "acme/echo-1", "revision": "r1", "context_tokens": 4096, "max_output_tokens": 9,
        "name": "n", "created": 1, "modalities": ["text"], "image_tokens": 576,
        "pricing": {"prompt": "0.25", "completion": "1", "cached_prompt": "0"},
    }],
    "datacenters": [{"id": "east"}],
    "deployments": [
        {
            "id": "east-1", "model": "acme/echo-1", "datacenter": "east", "engine": "openai",
            "slots": 8, "base_url": "http://127.0.0.1:9000/v1", "upstream_model": "m",
            "parameters": ["stop"], "routes": ["embeddings"], "schema_alternatives": 3,
            "health": "none", "draining": False, "tokens_per_second": 90,
        },
        {
            "id": "east-2", "model": "acme/echo-1", "datacenter": "east", "engine": "mock",
            "slots": 8, "model_file": "x", "mock": {"pace_ms": 1.5, "first_token_ms": 2},
        },
    ],
}  # fmt: skip
SCALARS = st.one_of(
    st.booleans(),
    st.integers(),
    st.integers(min_value=2**31, max_value=10**400),
    st.floats(),
    st.text(st.characters(blacklist_categories=["Cs"]), max_size=8),
    st.sampled_from([
        "", "east", "vllm", "http://a\0b:1/v1", "http://a b:1", "http://[::1", "http://a..b:1/",
        f"http://{'a' * 70}.com:1", "http://h:99999", "NaN", "1e999999999",
    ]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "slots", "mock", "x", "\n"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


def put(value: Any, path: tuple[str | int, ...], new: object) -> Any:
    """`value` with `new` at a place of it."""
    if not path:
        return new
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(copy[path[0]], path[1:], new)
    return copy


def toml(value: object) -> str:
    """A value as TOML has it: JSON's strings are its strings, its tables can be inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value).lower()


def written(folder: Path, text: str) -> FleetFile:
    path = folder / "fleet.toml"
    path.write_text(text, encoding="utf-8", newline="")
    return FleetFile(path, ENGINE_PARAMETERS, launching=True, changes=folder / "changes.json")


def document(values: object) -> str:
    if not isinstance(values, dict):
        return toml(values)
    return "\n".join(f"{key} = {toml(value)}" for key, value in values.items())


def test_the_fuzzed_file_has_every_key_and_can_be_read(tmp_path: Path):
    fleet = written(tmp_path, document(ENTRIES)).read()
    assert [one.id for one in fleet.deployments] == ["east-1", "east-2"]
    known = {field.name for field in msgspec.structs.fields(FleetEntries)}
    assert ENTRIES.keys() == known
    assert {key for one in ENTRIES["deployments"] for key in one} == {
        field.name
        for field in msgspec.structs.fields(
            msgspec.structs.fields(FleetEntries)[2].type.__args__[0]
        )
    }


@FUZZ
@given(st.sampled_from(places(ENTRIES)[1:]), VALUES)
def test_any_value_at_any_place_is_a_fleet_or_is_refused(
    tmp_path: Path, place: tuple[str | int, ...], value: object
):
    try:
        fleet = written(tmp_path, document(put(ENTRIES, place, value))).read()
    except FleetInvalid:
        return
    assert isinstance(fleet, Fleet)
    assert all(1 <= one.slots <= MOST_SLOTS for one in fleet.deployments)
    msgspec.json.encode([(one.created, one.context_tokens) for one in fleet.models])


@FUZZ
@given(
    st.binary(max_size=40) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace"))
)
def test_any_bytes_are_refused(tmp_path: Path, content: bytes):
    file = written(tmp_path, "")
    (tmp_path / "fleet.toml").write_bytes(content)
    with pytest.raises(FleetInvalid):
        file.read()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = " + "[" * 20_000, "nested too deep"),
        ("a = " + "9" * 5001, "it is not TOML"),
        (document(put(ENTRIES, ("deployments", 0, "slots"), 10**400)), "deployments[0].slots"),
        (document(put(ENTRIES, ("deployments", 0, "id"), [])), "deployments[0].id"),
    ],
)
def test_what_no_parser_takes_is_refused_by_both_readers(tmp_path: Path, text: str, said: str):
    file = written(tmp_path, text)
    with pytest.raises(FleetInvalid) as caught:
        file.read()
    assert said in str(caught.value)
    with pytest.raises(FleetError):
        read_fleet(tmp_path / "fleet.toml")


@FUZZ
@given(
    st.sampled_from(["add", "move", "drain", "resume", "remove"]),
    st.sampled_from(["east-1", "east-2", "[]", "new", ""]),
    st.sampled_from(places(ENTRIES)),
    VALUES,
    st.dictionaries(st.sampled_from([*ENTRIES["deployments"][0], "x"]), VALUES, max_size=4),
)
def test_any_edit_over_any_file_is_made_or_refused(
    tmp_path: Path,
    verb: str,
    name: str,
    place: tuple[str | int, ...],
    value: object,
    entry: dict[str, Any],
):
    file = written(tmp_path, document(put(ENTRIES, place, value) if place else ENTRIES))
    (tmp_path / "changes.json").unlink(missing_ok=True)
    with suppress(FleetInvalid):
        if verb == "add":
            file.add(entry)
        elif verb == "move":
            file.move(name, entry)
        elif verb == "remove":
            file.remove(name)
        else:
            file.drain(name, draining=verb == "drain")
        file.read()
        msgspec.json.encode([one.values for one in file.overrides()])


READY = {
    "deployments": [{
        "id": "a", "model": "m", "revision": "r", "datacenter": "d", "slots": 4,
        "base_url": "http://127.0.0.1:1/v1", "context_tokens": 9, "max_output_tokens": 9,
        "routes": ["completions"],
    }],
    "down": ["b"],
}  # fmt: skip


@FUZZ
@given(st.sampled_from(places(READY)), VALUES)
def test_any_value_in_a_ready_list_is_taken_or_leaves_what_was_known(
    tmp_path: Path, place: tuple[str | int, ...], value: object
):
    path = tmp_path / "ready.json"
    path.write_text(json.dumps(READY))
    fleet = ReadyFleet(path, frozenset(), lambda: 0.0)
    assert fleet.read()
    path.unlink()
    path.write_text(json.dumps(put(READY, place, value)))
    fleet.read()
    assert all(1 <= one.slots <= MOST_SLOTS for one in fleet.deployments)


def test_a_ready_list_that_is_nested_too_deep_leaves_what_was_known(tmp_path: Path):
    path = tmp_path / "ready.json"
    path.write_text('{"deployments": ' + "[" * 20_000)
    assert not ReadyFleet(path, frozenset(), lambda: 0.0).read()
