"""`prime config` and the file it keeps."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from .conftest import Prime
from .scripted_server import ScriptedServer

NOTHING_SET = {"PRIME_INFERENCE_URL": None, "PRIME_API_KEY": None}


@pytest.fixture
def config_file(home: Path) -> Path:
    return home / ".prime" / "config.json"


def read(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text())
    assert isinstance(content, dict)
    return content


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_set_is_sent(prime: Prime, server: ScriptedServer):
    assert prime("config", "set-inference-url", server.url + "/").exit_code == 0
    assert prime("config", "set-api-key", "pi-from-file").exit_code == 0
    assert prime("config", "set-team-id", "team-9").exit_code == 0
    assert prime("inference", "chat", "plain", "hi", **NOTHING_SET).exit_code == 0
    headers = server.chat_requests[0].headers
    assert headers["authorization"] == "Bearer pi-from-file"
    assert headers["x-prime-team-id"] == "team-9"
    assert prime("config", "remove-team-id").exit_code == 0
    prime("inference", "chat", "plain", "hi", **NOTHING_SET)
    assert "x-prime-team-id" not in server.chat_requests[1].headers


def test_only_the_owner_can_read_the_file(prime: Prime, config_file: Path):
    prime("config", "set-api-key", "secret")
    assert mode(config_file) == 0o600
    assert mode(config_file.parent) == 0o700
    config_file.chmod(0o644)
    prime("config", "set-team-id", "t")
    assert mode(config_file) == 0o600


def test_keys_of_other_tools_are_kept(prime: Prime, config_file: Path):
    config_file.parent.mkdir()
    before = {"ssh_key_path": "/x", "share_resources_with_team": True, "from_the_future": [1]}
    config_file.write_text(json.dumps(before))
    prime("config", "set-api-key", "secret")
    assert read(config_file) == {**before, "api_key": "secret"}


def test_a_link_to_the_file_stays_a_link(prime: Prime, config_file: Path, tmp_path: Path):
    config_file.parent.mkdir()
    real = tmp_path / "dotfiles.json"
    real.write_text("{}")
    config_file.symlink_to(real)
    prime("config", "set-api-key", "secret")
    assert config_file.is_symlink()
    assert read(real) == {"api_key": "secret"}


def test_no_draft_is_left_behind(prime: Prime, config_file: Path):
    prime("config", "set-api-key", "secret")
    assert list(config_file.parent.iterdir()) == [config_file]


def test_a_key_can_come_from_a_pipe_and_is_not_shown(prime: Prime, config_file: Path):
    result = prime("config", "set-api-key", stdin="pi_live_0123456789abcdef\n")
    assert read(config_file)["api_key"] == "pi_live_0123456789abcdef"
    assert "0123456789" not in result.output
    assert "pi_liv...cdef" in result.output


def test_in_json_a_change_shows_what_holds_since(prime: Prime):
    result = prime("config", "set-team-id", "team-9", "-o", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    team = json.loads(result.stdout)["team_id"]
    assert team["value"] == "team-9"
    assert team["source"].startswith("team_id in ")


def test_an_empty_key_clears_it(prime: Prime, config_file: Path):
    prime("config", "set-api-key", "secret")
    assert prime("config", "set-api-key", "").exit_code == 0
    assert read(config_file)["api_key"] == ""


def test_view_says_what_is_set_and_where_but_not_the_key(prime: Prime, server: ScriptedServer):
    prime("config", "set-api-key", "pi_live_0123456789abcdef")
    result = prime("config", "view", "-o", "json", PRIME_API_KEY=None)
    document = json.loads(result.stdout)
    assert document["environment"] == "production"
    assert document["inference_url"] == {
        "value": server.url,
        "source": "environment variable PRIME_INFERENCE_URL",
    }
    assert document["api_key"]["value"] == "pi_liv...cdef"
    assert document["api_key"]["source"] == f"api_key in {document['config_file']}"
    assert document["team_id"] is None
    assert "0123456789" not in prime("config", "view", PRIME_API_KEY=None).output


@pytest.mark.parametrize("content", ["{", "[]", "\xff", '{"api_key": 5}'])
def test_a_file_that_cannot_be_used_is_named_and_left_alone(
    prime: Prime, config_file: Path, content: str
):
    config_file.parent.mkdir()
    config_file.write_text(content, encoding="latin-1")
    result = prime("inference", "models", **NOTHING_SET)
    assert (result.exit_code, result.stdout) == (1, "")
    assert str(config_file) in result.stderr
    assert config_file.read_text(encoding="latin-1") == content


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://x", "http://", "http://a b", "http://h:99999"]
)
def test_a_url_that_is_none_is_not_written(prime: Prime, config_file: Path, url: str):
    assert prime("config", "set-inference-url", url).exit_code == 1
    assert not config_file.exists()


def test_an_environment_is_saved_used_and_deleted(prime: Prime, server: ScriptedServer):
    prime("config", "set-api-key", "key-of-staging")
    assert prime("config", "save", "staging", PRIME_API_KEY=None).exit_code == 0
    prime("config", "set-api-key", "key-of-another")
    prime("config", "set-inference-url", "http://127.0.0.1:9/api/v1")
    assert prime("config", "use", "staging").exit_code == 0
    assert prime("inference", "chat", "plain", "hi", **NOTHING_SET).exit_code == 0
    assert server.chat_requests[0].headers["authorization"] == "Bearer key-of-staging"
    listing = json.loads(prime("config", "envs", "-o", "json").stdout)
    assert listing == {"current": "staging", "environments": ["production", "staging"]}
    assert prime("config", "delete", "staging").exit_code == 1
    prime("config", "use", "production")
    assert prime("config", "delete", "staging").exit_code == 0


def test_an_environment_file_is_readable_by_its_owner_only(prime: Prime, home: Path):
    prime("config", "save", "staging")
    assert mode(home / ".prime/environments/staging.json") == 0o600


def test_a_context_holds_for_one_command(prime: Prime, server: ScriptedServer):
    prime("config", "save", "staging", PRIME_API_KEY="key-of-staging")
    for selector in (["-c", "staging"], []):
        env = {} if selector else {"PRIME_CONTEXT": "staging"}
        result = prime(*selector, "inference", "chat", "plain", "hi", **NOTHING_SET, **env)
        assert result.exit_code == 0
    keys = {seen.headers["authorization"] for seen in server.chat_requests}
    assert keys == {"Bearer key-of-staging"}
    assert json.loads(prime("config", "envs", "-o", "json").stdout)["current"] == "production"


def test_a_context_for_one_command_is_not_written_to(prime: Prime):
    prime("config", "save", "staging")
    result = prime("-c", "staging", "config", "set-api-key", "other")
    assert result.exit_code == 1
    assert "prime config use staging" in result.stderr


def test_switching_to_production_leaves_the_key_behind(prime: Prime, config_file: Path):
    prime("config", "save", "staging", PRIME_API_KEY="key-of-staging", PRIME_TEAM_ID="team-1")
    prime("config", "use", "staging")
    prime("config", "use", "production")
    values = read(config_file)
    assert values["api_key"] == ""
    assert values.get("team_id") is None
    assert values["inference_url"] == "https://api.pinference.ai/api/v1"


def test_an_unknown_environment_names_the_nearest(prime: Prime):
    prime("config", "save", "staging")
    for args in (["config", "use", "stagin"], ["-c", "stagin", "inference", "models"]):
        result = prime(*args)
        assert result.exit_code == 1
        assert "Did you mean staging?" in result.stderr


@pytest.mark.parametrize("name", ["../evil", "a/b", "", "a b", "Production"])
def test_a_name_that_cannot_be_a_files_is_refused(prime: Prime, home: Path, name: str):
    assert prime("config", "save", name).exit_code == 1
    assert not (home / ".prime" / "environments").exists()
