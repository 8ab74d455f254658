from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from prime_inference.cli.main import app
from prime_inference.kvcache.accuracy import endpoints as harness
from prime_inference.kvcache.accuracy.comparison import compare, markdown, write_report
from prime_inference.kvcache.accuracy.endpoints import (
    Answer,
    AnswerFile,
    Endpoint,
    EndpointFailed,
    RunMismatch,
    RunSettings,
    ask_all,
)
from prime_inference.kvcache.accuracy.tasks import CHARS_PER_TOKEN, TASKS, make_questions

LENGTHS = (600, 3000)
SIDES = {"reference": "m", "candidate": "m"}
SETTINGS = RunSettings(0, LENGTHS, 4, TASKS, SIDES, SIDES, 512)


def read(prompt: str, request: str) -> str:
    """What a good reader answers to a request over what it sees of the prompt."""
    codes = re.findall(r"vault code of (\w+) is (\d+)", prompt)
    if "vault" in request:
        return ", ".join(code for city, code in codes if city in request)
    if "million" in request:
        return ". ".join(re.findall(r"led by \w+ with \d+", prompt))
    known = set(re.findall(r"value (\d+)", request))
    assigned = re.findall(r"Assign (\w+) = (\w+)", prompt)
    for name, source in assigned * 2:
        known |= {name} if source in known else set()
    return " ".join(known & {name for name, _ in assigned})


class Reader(ThreadingHTTPServer):
    """An endpoint that reads a prompt as well as any model: where `sees` is set, only its
    last `sees` characters; where `mute`, it thinks until it is cut."""

    daemon_threads = True

    def __init__(
        self, sees: int | None = None, fail: int = 0, status: int = 503, mute: int = 0
    ) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.sees, self.fail, self.status = sees, fail, status
        self.asked, self.mute = 0, mute
        self.lie: tuple[bytes, dict[str, str]] | None = None  # every answer's body and headers
        self.nothing = None if mute else "I do not know."
        self.base_url = f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Reader

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked += 1
        if self.server.asked <= self.server.fail:
            return self.reply(self.server.status, {"error": {"message": "no"}})
        if self.server.lie:
            return self.reply(200, *self.server.lie)
        prompt = body["messages"][0]["content"]
        if self.server.sees is not None:
            prompt = prompt[-self.server.sees :]
        content = None if self.server.mute else read(prompt, prompt.rpartition("\n\n")[2])
        choice = {
            "message": {"role": "assistant", "content": content or self.server.nothing},
            "finish_reason": "length" if self.server.mute else "stop",
        }
        return self.reply(200, {"choices": [choice]})

    def reply(
        self, status: int, body: dict[str, Any] | bytes, headers: dict[str, str] | None = None
    ) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(raw))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # a client that has read enough
            self.wfile.write(raw)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Any]:
    servers: list[Reader] = []

    def start(**kind: int) -> Reader:
        server = Reader(**kind)
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def endpoints(reference: Reader, candidate: Reader) -> list[Endpoint]:
    return [
        Endpoint("reference", reference.base_url, "m"),
        Endpoint("candidate", candidate.base_url, "m"),
    ]


def test_questions_are_the_same_for_a_seed_and_have_the_length_asked_for() -> None:
    first, again = list(make_questions(1, LENGTHS, 2)), list(make_questions(1, LENGTHS, 2))
    assert first == again
    assert first != list(make_questions(2, LENGTHS, 2))
    assert len({one.id for one in first}) == len(first) == len(TASKS) * 2 * 2
    for one in first:
        assert one.tokens * CHARS_PER_TOKEN <= len(one.prompt) <= one.tokens * CHARS_PER_TOKEN + 120


def test_every_expected_string_of_a_retrieval_question_stands_in_its_prompt_once_needed() -> None:
    for one in make_questions(3, (800,), 4):
        for text in one.expected:
            assert text in one.prompt
        assert one.score(" ".join(one.expected).upper()) == 1.0
        assert one.score("nothing") == 0.0
    needle = next(make_questions(3, (800,), 1, ("needle",)))
    number = int(needle.expected[0])
    assert needle.score(f"It is {number:,}.") == 1.0


def test_a_candidate_that_loses_the_far_context_is_found_worse_there_and_only_there(
    serve: Any, tmp_path: Path
) -> None:
    questions = list(make_questions(0, LENGTHS, 4))
    file = AnswerFile(tmp_path / "answers.jsonl", SETTINGS)
    asyncio.run(ask_all(endpoints(serve(), serve(sees=3000)), questions, file))
    cells = {(cell.task, cell.tokens): cell for cell in compare(questions, file.answers)}
    assert cells["needle", 600].reference == 1.0
    assert cells["all", 3000].worse
    assert not cells["all", 600].worse
    assert cells["all", 600].low == cells["all", 600].high == 0.0
    assert cells["all", 0].questions == len(questions)
    assert "worse" in markdown([cells["all", 3000]])


def test_a_run_is_taken_up_where_it_stopped(serve: Any, tmp_path: Path) -> None:
    questions = list(make_questions(0, LENGTHS, 2))
    path = tmp_path / "answers.jsonl"
    reference, candidate = serve(), serve(fail=99, status=400)
    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(ask_all(endpoints(reference, candidate), questions, AnswerFile(path, SETTINGS)))
    assert caught.group_contains(EndpointFailed, match="candidate failed")
    kept = len(AnswerFile(path, SETTINGS).answers)
    with path.open("ab") as file:
        file.write(b'{"side":"refer')  # the line that was being written
    asked, candidate.fail = reference.asked, 0
    seen: list[tuple[int, int]] = []
    again = AnswerFile(path, SETTINGS)
    asyncio.run(
        ask_all(
            endpoints(reference, candidate),
            questions,
            again,
            progress=lambda done, total: seen.append((done, total)),
        )
    )
    assert reference.asked + candidate.asked - asked <= 2 * len(questions) - kept + 99
    assert seen[0] == (kept, 2 * len(questions))
    assert seen[-1] == (2 * len(questions), 2 * len(questions))
    assert AnswerFile(path, SETTINGS).answers == again.answers


def test_an_overloaded_endpoint_is_asked_again(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prime_inference.kvcache.accuracy.endpoints.RETRY_SECONDS", 0.0)
    questions = list(make_questions(0, (600,), 1, ("needle",)))
    server = serve(fail=2)
    file = AnswerFile(tmp_path / "answers.jsonl", SETTINGS)
    asyncio.run(ask_all(endpoints(server, server)[:1], questions, file))
    assert server.asked == 3
    assert file.answers["reference", questions[0].id].score == 1.0


def test_answers_of_other_settings_are_not_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    AnswerFile(path, SETTINGS)
    elsewhere = {"reference": "m", "candidate": "n"}
    for other, named in (
        (RunSettings(1, LENGTHS, 4, TASKS, SIDES, SIDES, 512), "seed was 0, now 1"),
        (RunSettings(0, LENGTHS, 4, TASKS, elsewhere, SIDES, 512), "models was"),
        (RunSettings(0, LENGTHS, 4, TASKS, SIDES, elsewhere, 512), "urls was"),
    ):
        with pytest.raises(RunMismatch, match=named):
            AnswerFile(path, other)
    path.write_text("not json\n")
    with pytest.raises(RunMismatch):
        AnswerFile(path, SETTINGS)


def test_the_interval_holds_the_mean_and_unpaired_questions_are_left_out(tmp_path: Path) -> None:
    questions = list(make_questions(0, (600,), 8, ("needle",)))
    answers = {}
    for number, one in enumerate(questions):
        answers["reference", one.id] = Answer("reference", one.id, 1.0, "")
        if number < 7:
            answers["candidate", one.id] = Answer("candidate", one.id, float(number % 2), "")
    cell = compare(questions, answers)[0]
    assert (cell.questions, cell.reference) == (7, 1.0)
    assert cell.low <= cell.candidate - cell.reference <= cell.high
    written = write_report(tmp_path, compare(questions, answers))
    assert all(path.exists() for path in written)
    assert {path.name for path in written} >= {"report.json", "report.md"}


def test_the_command_asks_both_and_writes_the_report(serve: Any, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app,
        ["inference", "eval", "kv", "endpoints", "--reference", serve().base_url,
         "--candidate", serve(sees=2000).base_url, "--model", "m", "--out", str(tmp_path / "run"),
         "--lengths", "600,3000", "--questions", "2", "-o", "json"],
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    cells = json.loads(result.stdout)
    assert any(cell["task"] == "all" and cell["candidate"] < cell["reference"] for cell in cells)
    assert (tmp_path / "run" / "report.md").exists()
    assert "of 32 answers" in result.stderr


def test_naming_everything_and_repeating_the_prompt_score_nothing() -> None:
    for one in make_questions(0, LENGTHS, 4):
        everything = re.findall(r"VAR[A-Z]{2}|\d{7}|led by \w+ with \d+", one.prompt)
        assert one.score(one.prompt) == 0.0
        assert one.score(one.prompt[: len(one.prompt) // 2]) == 0.0
        assert one.task == "summary" or one.score(" ".join(everything)) == 0.0
        assert one.score(" ".join(one.expected) + "x" * 5000) == 0.0


def test_a_budget_counts_beside_its_leader_only() -> None:
    one = next(make_questions(0, (600,), 1, ("summary",)))
    facts = [fact.split(" with ") for fact in one.expected]
    assert one.score("; ".join(f"{budget}: {leader}" for leader, budget in facts)) == 1.0
    leaders, budgets = [a for a, _ in facts], [b for _, b in facts]
    turned = zip(leaders, budgets[1:] + budgets[:1], strict=True)
    assert one.score("; ".join(f"{leader}, ({budget})" for leader, budget in turned)) == 0.0
    assert one.score(", ".join(leaders) + ": " + ", ".join(budgets)) == 0.0


def test_endpoints_that_answered_nothing_are_not_called_equal(serve: Any, tmp_path: Path) -> None:
    mute = serve(mute=1).base_url
    result = CliRunner().invoke(
        app,
        ["inference", "eval", "kv", "endpoints", "--reference", mute, "--candidate", mute,
         "--model", "m", "--out", str(tmp_path / "run"), "--lengths", "600", "--questions", "1"],
    )  # fmt: skip
    assert result.exit_code == 1
    assert "No verdict: of 4 answers each, 4 of the reference and 4 of the" in result.stderr
    assert "no verdict | 4 / 4" in (tmp_path / "run" / "report.md").read_text()


def command(url: str, out: Path, *more: str) -> list[str]:
    return ["inference", "eval", "kv", "endpoints", "--reference", url, "--candidate", url,
            "--model", "m", "--out", str(out), "--lengths", "600", "--questions", "1",
            *more]  # fmt: skip


COMPLETION = '{"choices": [{"message": {"content": %s}, "finish_reason": %s}]}'


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ("<html>not found</html>", {}),
        ("", {}),
        ("null", {}),
        ('{"choices": []}', {}),
        ('{"choices": %s}' % ("[" * 100_000 + "]" * 100_000), {}),
        (COMPLETION % ('[{"type": "text", "text": "x"}]', '"stop"'), {}),
        (COMPLETION % ('"x"', "5"), {}),
        (COMPLETION % (r'"\ud800"', '"stop"'), {}),
        ("not gzip", {"Content-Encoding": "gzip"}),
        ("x", {"Content-Length": "1000"}),  # and then nothing more
        (" " * 2_000_000, {}),
    ],
    ids=lambda given: str(given)[:40],
)
def test_an_endpoint_that_sends_no_completion_ends_the_command_with_its_name(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, headers: dict[str, str]
) -> None:
    monkeypatch.setattr(harness, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(harness, "ANSWER_SECONDS", 60.0 if "Content-Length" not in headers else 0.2)
    monkeypatch.setattr(harness, "MAX_ANSWER_BYTES", 1_000_000)
    server = serve()
    server.lie = body.encode(), headers
    result = CliRunner().invoke(app, command(server.base_url, tmp_path / "run"))
    assert result.exit_code == 1
    assert re.search(r"Error: (reference|candidate) (sent|failed)", result.stderr)


@pytest.mark.parametrize("url", ["http://[::1", "localhost:8000/v1", "", "file:///etc/passwd"])
def test_a_url_that_is_none_ends_the_command_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setattr(harness, "RETRY_SECONDS", 0.0)
    result = CliRunner().invoke(app, command(url, tmp_path / "run", "--reference-key", "k\u00e9y"))
    assert result.exit_code == 1
    assert "Error: " in result.stderr
    assert "failed on" in result.stderr


def test_a_disk_that_is_full_ends_the_command_and_the_run_can_go_on(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    url, add = serve().base_url, AnswerFile.add
    monkeypatch.setattr(AnswerFile, "add", full)
    result = CliRunner().invoke(app, command(url, tmp_path / "run"))
    assert result.exit_code == 1
    assert "No space left" in result.stderr
    answers = tmp_path / "run" / "answers.jsonl"
    answers.write_bytes(answers.read_bytes()[:40])  # the first line did not fit either
    monkeypatch.setattr(AnswerFile, "add", add)
    assert CliRunner().invoke(app, command(url, tmp_path / "run")).exit_code == 0


def test_a_line_that_is_no_answer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    AnswerFile(path, SETTINGS)
    path.write_bytes(path.read_bytes() + b'{"side": "reference"}\n')
    with pytest.raises(RunMismatch, match="line 2 is no answer"):
        AnswerFile(path, SETTINGS)


@pytest.mark.parametrize(
    ("given", "seconds"), [("7", 7), ("0.5", 0.5), ("3600", 0), ("nan", 0), ("-1", 0), ("soon", 0)]
)
def test_a_wait_that_a_server_asks_for_is_kept_within_reason(given: str, seconds: float) -> None:
    assert harness.retry_after({"retry-after": given}) == seconds
    assert harness.retry_after({}) == 0
