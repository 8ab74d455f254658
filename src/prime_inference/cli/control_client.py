"""The operator's side of a gateway: its control listener, asked from the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from prime_inference.cli.failures import (
    AnswerMalformed,
    NoApiKey,
    NothingAnswers,
    ServerRefused,
    TimedOut,
    WrongUsage,
)
from prime_inference.cli.folders import state_folder
from prime_inference.cli.local_server import KEY_FILE, find_local_server
from prime_inference.cli.replies import error_object
from prime_inference.cli.settings import is_http_url

ANSWER_SECONDS = 330.0  # adding a deployment may load a model, which may take 300 s
LOOK_SECONDS = 10.0  # a gateway that does not tell how it is by then is stuck


@dataclass(frozen=True, slots=True)
class ControlAddress:
    """Where a control listener is, and the key of its gateway."""

    url: str
    key: str


def control_address(url: str | None, folder: Path | None, key: str = "") -> ControlAddress:
    """The gateway that a command means. Raises NothingAnswers, NoApiKey, WrongUsage.

    Without a `key` it is that of the state folder.
    """
    folder = folder or state_folder(os.environ, Path.home())
    if url is None:
        server = find_local_server(folder)
        if server is None or not server.control_url:
            raise NothingAnswers(
                f"No gateway runs with the state folder {folder}.",
                hint="Start one, or name one with --state-dir or --control-url.",
            )
        return ControlAddress(server.control_url, server.api_key)
    if not is_http_url(url):
        raise WrongUsage(f"--control-url is no http(s) URL: {url!r}.")
    try:
        key = key or (folder / KEY_FILE).read_text().strip()
    except OSError as error:
        raise NoApiKey(
            f"The key of the gateway at {url} is not known.",
            hint="Set PRIME_CONTROL_KEY, or name its folder with --state-dir.",
        ) from error
    return ControlAddress(url.rstrip("/"), key)


class ControlClient:
    """Use it as a context manager; every method raises CommandFailed."""

    def __init__(self, address: ControlAddress) -> None:
        self._address = address
        self._http = httpx.Client(
            headers={"authorization": f"Bearer {address.key}"},
            trust_env=False,  # a control listener is not behind a proxy of the environment
        )

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def fleet(self) -> dict[str, Any]:
        """The fleet as the gateway sees it."""
        return self._ask("GET", "/fleet", seconds=LOOK_SECONDS)

    def add(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        return self._ask("POST", "/fleet/deployments", entry)

    def change(self, name: str, verb: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """drain, resume or move one deployment; the fleet afterwards."""
        return self._ask("POST", f"/fleet/deployments/{quote(name, safe='')}/{verb}", body)

    def remove(self, name: str, *, force: bool) -> dict[str, Any]:
        return self._ask("DELETE", f"/fleet/deployments/{quote(name, safe='')}", {"force": force})

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> dict[str, Any]:
        url = f"{self._address.url}{path}"
        try:
            response = self._http.request(method, url, json=body, timeout=seconds)
        except httpx.TimeoutException as error:
            raise TimedOut(f"{self._address.url} did not answer in time.") from error
        except httpx.HTTPError as error:
            raise NothingAnswers(f"No gateway answers at {self._address.url}.") from error
        try:
            document = msgspec.json.decode(response.content, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise AnswerMalformed(f"What answers at {url} is no gateway's control listener.") from (
                error
            )
        if response.status_code != httpx.codes.OK:
            failure = error_object(document.get("error"))
            raise ServerRefused(
                failure.message,
                status=response.status_code,
                server_code=failure.code,
                body=failure.body,
            )
        return document
