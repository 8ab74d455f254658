"""`prime inference chat` with a message: what is sent, and what comes out."""

from __future__ import annotations

import json

import pytest

from .conftest import Prime
from .scripted_server import USAGE, ScriptedServer


def test_prints_the_answer_and_nothing_else(prime: Prime):
    result = prime("inference", "chat", "plain", "hi")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Hello, wörld.\n", "")


def test_a_streamed_answer_is_the_same_text(prime: Prime):
    result = prime("inference", "chat", "plain", "hi", "--stream")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Hello, wörld.\n", "")


def test_sends_what_was_asked_for_and_no_more(prime: Prime, server: ScriptedServer):
    prime("inference", "chat", "plain", "hi")
    sent = server.chat_requests[0]
    assert sent.body == {"model": "plain", "messages": [{"role": "user", "content": "hi"}]}
    assert sent.headers["authorization"] == "Bearer pi-test-key"
    assert "x-prime-team-id" not in sent.headers


def test_every_option_has_its_field(prime: Prime, server: ScriptedServer):
    options = ["-s", "Be brief.", "-t", "0.5", "--max-tokens", "7", "--reasoning-effort", "low"]
    options += ["--service-tier", "flex"]
    prime("inference", "chat", "plain", "hi", *options, "--stream", "--stats")
    assert server.chat_requests[0].body == {
        "model": "plain",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hi"},
        ],
        "temperature": 0.5,
        "max_tokens": 7,
        "reasoning_effort": "low",
        "service_tier": "flex",
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_the_team_goes_along_in_a_header(prime: Prime, server: ScriptedServer):
    prime("inference", "chat", "plain", "hi", PRIME_TEAM_ID="team-7")
    assert server.chat_requests[0].headers["x-prime-team-id"] == "team-7"


def test_without_a_message_standard_input_is_sent(prime: Prime, server: ScriptedServer):
    result = prime("inference", "chat", "plain", stdin="from a pipe\n")
    assert result.exit_code == 0
    assert server.chat_requests[0].body["messages"][0]["content"] == "from a pipe"


@pytest.mark.parametrize(
    ("content", "reason"), [(b" \n", "is empty"), (b"\xff\xfe", "not UTF-8")], ids=["blank", "bin"]
)
def test_standard_input_without_a_message_is_an_error(
    prime: Prime, server: ScriptedServer, content: bytes, reason: str
):
    result = prime("inference", "chat", "plain", stdin=content)
    assert (result.exit_code, result.stdout) == (1, "")
    assert reason in result.stderr
    assert not server.requests


def test_reasoning_goes_to_stderr_between_marks(prime: Prime):
    result = prime("inference", "chat", "reasoning", "hi", "--stream")
    assert result.stdout == "42\n"
    assert result.stderr == "<think>\nLet me think.\n</think>\n\n"


def test_json_is_the_servers_answer_as_it_came(prime: Prime):
    result = prime("inference", "chat", "plain", "hi", "-o", "json")
    document = json.loads(result.stdout)
    assert document["choices"][0]["message"]["content"] == "Hello, wörld."
    assert document["usage"] == USAGE
    assert (result.exit_code, result.stderr) == (0, "")


def test_stats_of_a_stream_come_after_it_on_stderr(prime: Prime):
    result = prime("inference", "chat", "plain", "hi", "--stream", "--stats")
    assert result.stdout == "Hello, wörld.\n"
    line = result.stderr.strip()
    assert line.startswith("12 prompt tokens (8 cached) · 3 completion tokens · first token after")
    assert line.endswith("tokens/s")


def test_stats_as_json_are_one_line_and_leave_out_what_is_not_known(prime: Prime):
    result = prime("inference", "chat", "plain", "hi", "--stats", "-o", "json")
    json.loads(result.stdout)
    stats = json.loads(result.stderr)["stats"]
    assert stats["completion_tokens"] == 3
    assert stats["cached_tokens"] == 8
    assert stats["time_to_first_token"] is None
    assert stats["tokens_per_second"] > 0


def test_an_answer_that_a_stream_ends_without_done_is_whole(prime: Prime):
    result = prime("inference", "chat", "no-done", "hi", "--stream", "--stats")
    assert (result.exit_code, result.stdout) == (0, "Whole.\n")
    assert "the server reported no usage" in result.stderr


def test_a_pipe_gets_the_text_as_the_model_wrote_it(prime: Prime):
    result = prime("inference", "chat", "escape", "hi", "--stream")
    assert result.stdout == "red \x1b[31m \x1b]52;c;ZXZpbA==\x07 end\n"


def test_options_that_do_not_go_together_are_refused(prime: Prime, server: ScriptedServer):
    result = prime("inference", "chat", "plain", "hi", "--stream", "-o", "json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert (
        "--stream is not supported with --output json"
        in json.loads(result.stderr)["error"]["message"]
    )
    assert not server.requests


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_temperature_that_json_cannot_carry_is_refused(prime: Prime, value: str):
    result = prime("inference", "chat", "plain", "hi", "-t", value)
    assert (result.exit_code, result.stderr) == (
        1,
        "Error: --temperature must be a finite number.\n",
    )
