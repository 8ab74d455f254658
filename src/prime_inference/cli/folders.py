"""Where this person's state and downloads are kept (XDG Base Directory Specification 0.8)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def state_folder(environ: Mapping[str, str], home: Path) -> Path:
    """What a server on this machine keeps: PRIME_STATE_DIR, else the XDG state folder."""
    return _folder(environ, "PRIME_STATE_DIR", "XDG_STATE_HOME", home / ".local" / "state")


def cache_folder(environ: Mapping[str, str], home: Path) -> Path:
    """What can be fetched again: PRIME_CACHE_DIR, else the XDG cache folder."""
    return _folder(environ, "PRIME_CACHE_DIR", "XDG_CACHE_HOME", home / ".cache")


def _folder(environ: Mapping[str, str], own: str, xdg: str, default: Path) -> Path:
    named = environ.get(own)
    if named:
        return Path(named).expanduser().absolute()
    base = Path(environ.get(xdg, ""))
    # the specification has relative paths ignored
    return (base if base.is_absolute() else default) / "prime-inference"
