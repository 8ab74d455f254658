"""What `prime inference chat` does when the answer does not come, or not whole."""

from __future__ import annotations

import json
import socket

import pytest

from .conftest import Prime
from .scripted_server import ScriptedServer

REFUSALS = [
    ("unauthorized", "The API key is not valid. (401, invalid_api_key)", "PRIME_API_KEY"),
    ("broke", "Payment required. The balance is $0.00. (402, insufficient_quota)", ""),
    ("unknown", "The model 'unknown' does not exist. (404, model_not_found)", "inference models"),
    ("limited", "Too many requests. (429, rate_limit_exceeded)", "Try again in 7 s."),
    ("bad-gateway", "<html>Bad Gateway</html> (502)", ""),
    ("redirect", "Found (302)", ""),
]


@pytest.mark.parametrize("way", ["--stream", "--output=text"])
@pytest.mark.parametrize(("model", "message", "hint"), REFUSALS)
def test_a_refusal_is_reported_on_stderr(
    prime: Prime, model: str, message: str, hint: str, way: str
):
    result = prime("inference", "chat", model, "hi", way)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"Error: {message}\n")
    assert hint in result.stderr


def test_a_refusal_in_json_is_the_servers_error_object_and_more(prime: Prime):
    result = prime("inference", "chat", "limited", "hi", "-o", "json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert json.loads(result.stderr) == {
        "error": {
            "message": "Too many requests. (429, rate_limit_exceeded)",
            "type": "some_error",
            "param": None,
            "code": "rate_limit_exceeded",
            "hint": "Try again in 7 s.",
            "status": 429,
            "retry_after": 7.0,
            "request_id": "req-1",
        }
    }


@pytest.mark.parametrize(
    ("model", "printed", "reason"),
    [
        ("in-band-error", "Half an \n", "The deployment went away."),
        ("error-finish", "Half\n", "broke off the answer"),
        ("cut", "Half an \n", "broke before the answer was whole"),
        ("ended-early", "Half an \n", "without a finish reason"),
        ("garbage-event", "Half\n", "not what the API promises"),
        ("wrong-type", "", "not what the API promises"),
        ("not-a-stream", "", "text/html instead of a stream"),
    ],
)
def test_a_stream_that_fails_keeps_its_text_and_exits_with_1(
    prime: Prime, model: str, printed: str, reason: str
):
    result = prime("inference", "chat", model, "hi", "--stream")
    assert (result.exit_code, result.stdout) == (1, printed)
    assert result.stderr.startswith("Error: ")
    assert reason in result.stderr


@pytest.mark.parametrize(
    ("model", "printed", "reason"),
    [
        ("in-band-error-whole", "", "The deployment went away."),
        ("ended-early-whole", "Half an \n", "without a finish reason"),
        ("garbage", "", "not what the API promises"),
        ("no-choices", "", "has no choices"),
        ("lone-surrogate", "", "not what the API promises"),
    ],
)
def test_a_whole_answer_that_is_none_exits_with_1(
    prime: Prime, model: str, printed: str, reason: str
):
    result = prime("inference", "chat", model, "hi")
    assert (result.exit_code, result.stdout) == (1, printed)
    assert reason in result.stderr


def test_in_json_an_in_band_error_leaves_stdout_empty(prime: Prime):
    result = prime("inference", "chat", "in-band-error-whole", "hi", "-o", "json")
    assert (result.exit_code, result.stdout) == (1, "")
    error = json.loads(result.stderr)["error"]
    assert error["code"] == "upstream_cut"
    assert error["metadata"] == {"error_type": "provider_unavailable"}


def test_when_nothing_answers_here_it_says_how_to_start_something(prime: Prime):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}/api/v1"
    result = prime("inference", "chat", "plain", "hi", PRIME_INFERENCE_URL=url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"Nothing answers at {url}." in result.stderr
    assert "prime inference serve" in result.stderr
    assert "--serve" in result.stderr


def test_a_server_elsewhere_is_not_asked_without_a_key(prime: Prime):
    url = "http://inference.invalid/api/v1"
    result = prime("inference", "chat", "m", "hi", PRIME_INFERENCE_URL=url, PRIME_API_KEY=None)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"Error: No API key for {url}.")


def test_a_server_elsewhere_that_cannot_be_found_is_named(prime: Prime):
    url = "http://inference.invalid/api/v1"
    result = prime("inference", "chat", "m", "hi", PRIME_INFERENCE_URL=url)
    assert result.exit_code == 1
    assert f"Nothing answers at {url}" in result.stderr
    assert "environment variable PRIME_INFERENCE_URL" in result.stderr


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(prime: Prime):
    result = prime("inference", "chat", "plain", "hi", HTTP_PROXY="http://127.0.0.1:9")
    assert result.exit_code == 0


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/x", "http://", "http://h:99999"])
def test_a_url_that_is_none_is_refused(prime: Prime, url: str):
    result = prime("inference", "chat", "plain", "hi", PRIME_INFERENCE_URL=url)
    assert result.exit_code == 1
    assert "is not an http(s) URL" in result.stderr


def test_a_key_that_no_header_can_carry_is_refused(prime: Prime, server: ScriptedServer):
    result = prime("inference", "chat", "plain", "hi", PRIME_API_KEY="schlüssel")
    assert result.exit_code == 1
    assert "API key (environment variable PRIME_API_KEY)" in result.stderr
    assert "schlüssel" not in result.stderr
    assert not server.requests


@pytest.mark.parametrize("args", [["chat"], ["chat", "m", "hi", "--bogus"], ["chats"]])
def test_a_command_line_that_does_not_parse_exits_with_2_in_json_too(prime: Prime, args: list[str]):
    text = prime("inference", *args)
    document = prime("inference", *args, "-o", "json")
    assert (text.exit_code, document.exit_code) == (2, 2)
    assert json.loads(document.stderr)["error"]["code"] == "wrong_usage"
    assert text.stdout == document.stdout == ""
