"""Named environments: the accounts and URLs a person switches between.

They are kept in ~/.prime/environments/NAME.json, in the format of the `prime` tools.
`production` is built in and stands for the hosted service.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from prime_inference.cli.config_file import PRODUCTION, ConfigFile, read_json, write_json
from prime_inference.cli.failures import ConfigInvalid
from prime_inference.domain.suggestions import did_you_mean

HOSTED_URL = "https://api.pinference.ai/api/v1"

ACCOUNT_KEYS = ("api_key", "team_id", "team_name", "team_role", "user_id", "user_name")
URL_KEYS = ("base_url", "frontend_url", "inference_url", "traces_url")
ENVIRONMENT_KEYS = ACCOUNT_KEYS + URL_KEYS

NAME = re.compile(r"[A-Za-z0-9_-]+")  # a file's name, with no way out of the folder


def environment_names(config: ConfigFile) -> list[str]:
    """The built-in environment and the saved ones."""
    saved = sorted(file.stem for file in _folder(config).glob("*.json"))
    return [PRODUCTION, *(name for name in saved if name.lower() != PRODUCTION)]


def in_environment(config: ConfigFile, name: str) -> ConfigFile:
    """The configuration with the account and URLs of a named environment.

    What the environment lacks is cleared, not inherited: an API key is never carried over
    to a server that it was not made for. Raises ConfigInvalid.
    """
    if name.lower() == PRODUCTION:
        if config.environment.lower() == PRODUCTION:
            return config
        saved: dict[str, Any] = {"inference_url": HOSTED_URL}
        name = PRODUCTION
    else:
        saved = read_json(_existing_file(config, name))
    values = {key: value for key, value in config.values.items() if key not in ENVIRONMENT_KEYS}
    values |= {key: saved[key] for key in ENVIRONMENT_KEYS if saved.get(key) is not None}
    values.setdefault("api_key", "")
    return ConfigFile(config.path, values | {"current_environment": name})


def save_environment(config: ConfigFile, name: str) -> Path:
    """Save the account and URLs in use under a name. Raises ConfigInvalid."""
    file = _file(config, name)
    write_json(file, {key: config.values.get(key) for key in ENVIRONMENT_KEYS})
    return file


def delete_environment(config: ConfigFile, name: str) -> None:
    """Forget a saved environment that is not in use. Raises ConfigInvalid."""
    file = _existing_file(config, name)
    if config.environment.lower() == name.lower():
        raise ConfigInvalid(
            f"{name} is the environment in use.", hint="Leave it first: prime config use production"
        )
    file.unlink()


def _folder(config: ConfigFile) -> Path:
    return config.path.parent / "environments"


def _file(config: ConfigFile, name: str) -> Path:
    if not NAME.fullmatch(name):
        raise ConfigInvalid(
            f"{name!r} cannot name an environment: only letters, digits, - and _ are allowed."
        )
    if name.lower() == PRODUCTION:
        raise ConfigInvalid(f"{PRODUCTION} is built in: it can be neither saved nor deleted.")
    return _folder(config) / f"{name}.json"


def _existing_file(config: ConfigFile, name: str) -> Path:
    file = _file(config, name)
    if not file.exists():
        known = environment_names(config)
        raise ConfigInvalid(
            f"There is no environment {name!r}.{did_you_mean(name, known)}",
            hint=f"Known: {', '.join(known)}.",
        )
    return file
