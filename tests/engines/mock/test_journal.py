from prime_inference.engines.mock import journal as module
from prime_inference.engines.mock.journal import Journal
from tests.engines.mock.conftest import HELLO, Client


async def test_requests_are_kept_with_headers_body_and_outcome(client: Client):
    await client.chat(model="a/b", user="u")
    [seen] = client.engine.requests
    assert seen.json == {"model": "a/b", "messages": HELLO, "user": "u"}
    assert seen.header("Content-Type") == "application/json"
    assert seen.header("x-absent") is None
    assert (seen.model, seen.status, seen.outcome, seen.tokens) == ("a/b", 200, "complete", 64)


async def test_the_journal_is_read_and_cleared_over_http(client: Client):
    where = client.engine.base_url.removesuffix("/v1")
    await client.chat(model="mock/status-500.first-1")
    answer = (await client.http.get(f"{where}/mock/requests")).json()
    assert answer["count"] == 1
    assert answer["requests"][0]["outcome"] == "refused"
    assert answer["requests"][0]["behaviour"] == "status-500.first-1"
    assert answer["requests"][0]["body"]["messages"] == HELLO
    await client.http.post(f"{where}/mock/reset")
    assert (await client.http.get(f"{where}/mock/requests")).json()["count"] == 0
    assert (await client.chat(model="mock/status-500.first-1")).status_code == 500


async def test_a_behaviour_is_set_over_http(client: Client):
    where = client.engine.base_url.removesuffix("/v1")
    wish = {"behaviour": "status-502", "model": "a/b"}
    assert (await client.http.post(f"{where}/mock/behaviour", json=wish)).status_code == 200
    assert (await client.chat(model="a/b")).status_code == 502
    wish = {"behaviour": "nonsense"}
    assert (await client.http.post(f"{where}/mock/behaviour", json=wish)).status_code == 400


def test_the_journal_is_bounded_in_number_and_bytes(monkeypatch):
    monkeypatch.setattr(module, "KEPT_BYTES", 25)
    monkeypatch.setattr(module, "KEPT_REQUESTS", 5)
    journal = Journal()
    for size in [10] * 4:
        journal.open(0.0, "POST", "/", [], b"x" * size)
    assert [seen.number for seen in journal] == [3, 4]
    for _ in range(9):
        journal.open(0.0, "POST", "/", [], b"")
    assert [seen.number for seen in journal] == [9, 10, 11, 12, 13]
    assert journal.count == 13


def test_a_body_that_is_no_json_is_shown_as_text():
    seen = Journal().open(0.0, "POST", "/", [], b"\xff{")
    assert seen.as_object()["body"] == "\ufffd{"
