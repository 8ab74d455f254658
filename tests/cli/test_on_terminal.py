"""What looks different on a terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .conftest import COMMAND
from .terminal_session import on_terminal


def test_models_are_a_table_with_their_names_as_they_are(to_server: dict[str, str]):
    wide = {**to_server, "COLUMNS": "160"}
    with on_terminal([*COMMAND, "inference", "models"], wide) as session:
        assert session.end() == 0
    assert "Prime Inference - Models" in session.screen
    assert "Acme [bold]Large" in session.screen
    assert "┃" in session.screen


def test_plain_is_plain_on_a_terminal_too(to_server: dict[str, str]):
    with on_terminal([*COMMAND, "inference", "models", "--plain"], to_server) as session:
        assert session.end() == 0
    assert "┃" not in session.screen
    assert "\x1b" not in session.screen


def test_an_error_is_red(to_server: dict[str, str]):
    with on_terminal([*COMMAND, "inference", "chat", "unknown", "hi"], to_server) as session:
        assert session.end() == 1
    assert "\x1b[31mError: The model 'unknown' does not exist." in session.screen


def test_a_key_that_is_asked_for_is_not_shown(to_server: dict[str, str], home: Path):
    with on_terminal([*COMMAND, "config", "set-api-key"], to_server) as session:
        session.expect("API key (Enter clears it): ")
        session.type("secret-key-0123456789\n")
        assert session.end() == 0
    assert "0123456789" not in session.screen
    written = json.loads((home / ".prime" / "config.json").read_text())
    assert written["api_key"] == "secret-key-0123456789"


def test_a_download_is_a_bar(to_server: dict[str, str]):
    download = (
        "from prime_inference.cli.progress import DownloadProgress\n"
        "with DownloadProgress('weights [1]') as progress:\n"
        "    for done in range(0, 101, 20): progress(done * 1_000_000, 100_000_000)\n"
    )
    with on_terminal([sys.executable, "-c", download], to_server) as session:
        assert session.end() == 0
    assert "weights [1]" in session.screen
    assert "━" in session.screen
    assert "100.0/100.0 MB" in session.screen
