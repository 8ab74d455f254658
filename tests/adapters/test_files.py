"""The state folder of one machine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from prime_inference.adapters.files.endpoint_file import EndpointFile
from prime_inference.adapters.files.key_store import FileKeyStore, StateFolderError
from prime_inference.domain import keys


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_the_first_start_makes_a_key_that_only_its_owner_can_read(tmp_path: Path):
    folder = tmp_path / "state"
    store = FileKeyStore.open(folder, now=1.0)
    assert mode(folder) == 0o700
    assert mode(folder / "api_key") == mode(folder / "keys.json") == 0o600
    assert (folder / "api_key").read_text().strip() == store.own_key


def test_the_key_stays_the_same_over_restarts(tmp_path: Path):
    first = FileKeyStore.open(tmp_path, now=1.0).own_key
    assert FileKeyStore.open(tmp_path, now=2.0).own_key == first


def test_the_key_is_found_by_its_id_and_verifies(tmp_path: Path):
    store = FileKeyStore.open(tmp_path, now=1.0)
    key = store.find(keys.parse(store.own_key) or "")
    assert key is not None
    assert keys.verify(store.own_key, key)
    assert store.find("000000000000") is None


def test_the_records_do_not_hold_the_key(tmp_path: Path):
    store = FileKeyStore.open(tmp_path, now=1.0)
    assert store.own_key.split("_")[3] not in (tmp_path / "keys.json").read_text()


@pytest.mark.parametrize("text", ["", "pi_live_wrong", "\n"])
def test_a_lost_or_damaged_own_key_is_made_anew_and_old_keys_stay_valid(tmp_path: Path, text: str):
    old = FileKeyStore.open(tmp_path, now=1.0).own_key
    (tmp_path / "api_key").write_text(text)
    store = FileKeyStore.open(tmp_path, now=2.0)
    assert store.own_key != old
    assert store.find(keys.parse(old) or "") is not None


@pytest.mark.parametrize("damage", [b"", b"{", b'[{"key_id": 1}]', b"\xff"])
def test_damaged_records_are_an_error_that_says_what_to_do(tmp_path: Path, damage: bytes):
    FileKeyStore.open(tmp_path, now=1.0)
    (tmp_path / "keys.json").write_bytes(damage)
    with pytest.raises(StateFolderError, match="backup"):
        FileKeyStore.open(tmp_path, now=2.0)


def test_a_folder_that_cannot_be_made_is_an_error_that_names_the_flag(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateFolderError, match="--state-dir"):
        FileKeyStore.open(tmp_path / "file" / "state", now=1.0)


def test_the_endpoint_file_is_there_while_its_server_runs(tmp_path: Path):
    file = EndpointFile(tmp_path)
    file.write("http://127.0.0.1:1/api/v1", "http://127.0.0.1:2", "a/b")
    written = json.loads((tmp_path / "endpoint.json").read_text())
    assert written["pid"] == os.getpid()
    file.remove()
    assert not (tmp_path / "endpoint.json").exists()


def test_another_servers_endpoint_file_is_left_alone(tmp_path: Path):
    file = EndpointFile(tmp_path)
    file.write("http://127.0.0.1:1/api/v1", "http://127.0.0.1:2", "a/b")
    (tmp_path / "endpoint.json").write_text('{"pid": 1}')
    file.remove()
    assert (tmp_path / "endpoint.json").exists()
