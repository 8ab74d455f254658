"""Which server a command speaks to, and as whom.

Each value comes from the environment, else from the config file (or the named environment
that PRIME_CONTEXT picks), else from the server that runs on this machine.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from prime_inference.cli.config_file import ConfigFile, config_path, load_config
from prime_inference.cli.environments import in_environment
from prime_inference.cli.failures import ConfigInvalid
from prime_inference.cli.folders import state_folder
from prime_inference.cli.local_server import LocalServer, find_local_server

DEFAULT_URL = "http://127.0.0.1:8000/api/v1"
"""Where `prime inference serve` listens unless it is told otherwise."""

LOCAL_SOURCE = "the server running on this machine"

HEADER_TEXT = re.compile(r"[\x21-\x7e]+")  # what a header field can carry without escapes
DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and where it comes from, in words."""

    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Settings:
    """What a request needs to know."""

    inference_url: Setting
    api_key: Setting | None
    team_id: Setting | None

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine, as far as its URL tells."""
        return _is_loopback(urlsplit(self.inference_url.value).hostname or "")


def current_config() -> ConfigFile:
    """The config file of this person, in the environment that PRIME_CONTEXT picks if any."""
    config = load_config(config_path(Path.home()))
    context = os.environ.get("PRIME_CONTEXT")
    return in_environment(config, context) if context else config


def current_settings() -> Settings:
    """What holds for a command run here and now. Raises ConfigInvalid."""
    local = find_local_server(state_folder(os.environ, Path.home()))
    return resolve(os.environ, current_config(), local)


def resolve(environ: Mapping[str, str], config: ConfigFile, local: LocalServer | None) -> Settings:
    """Settings from their sources; `local` is the server running on this machine, if any.

    The local server's key goes to that server only, and only if no key is set for it by hand.
    Raises ConfigInvalid for a value that cannot be used.
    """
    url = _from_environment(environ, "PRIME_INFERENCE_URL") or _from_file(config, "inference_url")
    if url is None and local is not None:
        url = Setting(local.base_url, LOCAL_SOURCE)
    url = _checked_url(url or Setting(DEFAULT_URL, "default"))
    if local is not None and not same_origin(url.value, local.base_url):
        local = None
    key = _api_key(environ, config, local, url.value)
    team = _from_environment(environ, "PRIME_TEAM_ID")
    if team is None and key is not None and key.source != LOCAL_SOURCE:
        team = _from_file(config, "team_id")
    return Settings(url, _checked_header(key, "API key"), _checked_header(team, "team ID"))


def _api_key(
    environ: Mapping[str, str], config: ConfigFile, local: LocalServer | None, url: str
) -> Setting | None:
    """The key for the server at `url`; `local` is that server if it runs on this machine.

    The file's key is for the file's URL. A URL from the environment gets it too, as `prime`
    has always done, unless it is the local server's, whose key is known.
    """
    key = _from_environment(environ, "PRIME_API_KEY")
    if key is not None:
        return key
    file_url = config.text("inference_url")
    made_for_another = file_url is not None and not same_origin(file_url, url)
    if local is None or not made_for_another:
        key = _from_file(config, "api_key")
    if key is None and local is not None:
        key = Setting(local.api_key, LOCAL_SOURCE)
    return key


def same_origin(one: str, other: str) -> bool:
    """Whether two URLs name the same port of the same host; loopback's names are one host."""
    return _origin(urlsplit(one)) == _origin(urlsplit(other))


def _origin(url: SplitResult) -> tuple[str, str, int | None]:
    host = url.hostname or ""
    name = "loopback" if _is_loopback(host) else host
    return url.scheme, name, url.port or DEFAULT_PORTS.get(url.scheme)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _from_environment(environ: Mapping[str, str], name: str) -> Setting | None:
    value = environ.get(name, "").strip()
    return Setting(value, f"environment variable {name}") if value else None


def _from_file(config: ConfigFile, key: str) -> Setting | None:
    value = config.text(key)
    return Setting(value, f"{key} in {config.path}") if value else None


def is_http_url(url: str) -> bool:
    """Whether `url` can be asked over HTTP."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in DEFAULT_PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return usable and not any(character.isspace() for character in url)


def _checked_url(setting: Setting) -> Setting:
    url = setting.value.rstrip("/")
    if not is_http_url(url):
        raise ConfigInvalid(
            f"The inference URL {setting.value!r} ({setting.source}) is not an http(s) URL.",
            hint=f"It looks like {DEFAULT_URL}.",
        )
    return Setting(url, setting.source)


def _checked_header(setting: Setting | None, name: str) -> Setting | None:
    if setting is not None and not HEADER_TEXT.fullmatch(setting.value):
        raise ConfigInvalid(
            f"The {name} ({setting.source}) has blanks or characters that are not ASCII."
        )
    return setting
