"""Which server is asked, and which key it is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_inference.cli.config_file import ConfigFile
from prime_inference.cli.failures import ConfigInvalid
from prime_inference.cli.local_server import LocalServer
from prime_inference.cli.settings import DEFAULT_URL, Settings, resolve, same_origin

HERE = LocalServer("http://127.0.0.1:8000/api/v1", "m", "key-of-local-server")
ELSEWHERE = "https://inference.example.com/api/v1"


def settings(
    *, env: dict[str, str] | None = None, local: LocalServer | None = None, **file: object
) -> Settings:
    return resolve(env or {}, ConfigFile(Path("config.json"), file), local)


def key_of(found: Settings) -> str | None:
    return found.api_key.value if found.api_key else None


def test_without_anything_set_it_is_the_default_url_and_no_key():
    found = settings()
    assert found.inference_url.value == DEFAULT_URL
    assert (found.api_key, found.team_id) == (None, None)
    assert found.is_local


def test_the_environment_goes_before_the_file():
    env = {"PRIME_INFERENCE_URL": ELSEWHERE, "PRIME_API_KEY": "a", "PRIME_TEAM_ID": "b"}
    found = settings(env=env, inference_url="http://x/api/v1", api_key="c", team_id="d")
    assert (found.inference_url.value, key_of(found)) == (ELSEWHERE, "a")
    assert found.team_id is not None
    assert (found.team_id.value, found.team_id.source) == (
        "b",
        "environment variable PRIME_TEAM_ID",
    )


def test_an_empty_variable_counts_as_not_set():
    found = settings(env={"PRIME_API_KEY": "", "PRIME_INFERENCE_URL": " "}, api_key="c")
    assert (found.inference_url.value, key_of(found)) == (DEFAULT_URL, "c")


def test_a_slash_at_the_end_of_the_url_does_not_matter():
    assert settings(inference_url=ELSEWHERE + "/").inference_url.value == ELSEWHERE


def test_a_server_running_here_is_found_with_its_key():
    server = LocalServer("http://127.0.0.1:9123/api/v1", "m", "its-key")
    found = settings(local=server)
    assert (found.inference_url.value, key_of(found)) == (server.base_url, "its-key")


def test_the_local_servers_key_goes_nowhere_else():
    assert key_of(settings(env={"PRIME_INFERENCE_URL": ELSEWHERE}, local=HERE)) is None
    other_port = {"PRIME_INFERENCE_URL": "http://127.0.0.1:8001/api/v1"}
    assert key_of(settings(env=other_port, local=HERE)) is None


def test_the_local_servers_key_goes_to_it_by_any_of_its_names():
    env = {"PRIME_INFERENCE_URL": "http://localhost:8000/api/v1"}
    assert key_of(settings(env=env, local=HERE)) == "key-of-local-server"


def test_a_key_set_by_hand_goes_before_the_local_servers():
    assert key_of(settings(local=HERE, api_key="by-hand")) == "by-hand"
    assert key_of(settings(local=HERE, env={"PRIME_API_KEY": "by-hand"})) == "by-hand"


def test_the_files_key_for_another_server_is_not_given_to_the_local_one():
    env = {"PRIME_INFERENCE_URL": HERE.base_url}
    found = settings(env=env, local=HERE, api_key="hosted", inference_url=ELSEWHERE, team_id="t")
    assert key_of(found) == "key-of-local-server"
    assert found.team_id is None


@pytest.mark.parametrize("value", [5, ["x"], {}, True])
def test_a_value_of_the_wrong_type_in_the_file_is_named(value: object):
    with pytest.raises(ConfigInvalid, match=r"api_key in config\.json must be text"):
        settings(api_key=value)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("http://127.0.0.1:8000/api/v1", "http://localhost:8000", True),
        ("http://[::1]:8000", "http://127.0.0.2:8000", True),
        ("http://a.example", "http://a.example:80/x", True),
        ("http://a.example", "https://a.example", False),
        ("http://a.example:81", "http://a.example", False),
        ("http://127.0.0.1.evil.example:8000", "http://127.0.0.1:8000", False),
        ("http://localhost.evil.example", "http://localhost", False),
    ],
)
def test_two_urls_name_the_same_server_or_not(one: str, other: str, same: bool):
    assert same_origin(one, other) is same
