"""Help, version, and how little is loaded to show them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

import prime_inference
from prime_inference.cli.main import app

from .conftest import Prime


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every command, however deep its group."""
    root: Any = group or typer.main.get_command(app)
    for name, command in root.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield *path, name


@pytest.mark.parametrize("path", list(commands()), ids="-".join)
@pytest.mark.parametrize("plain", [[], ["--plain"]], ids=["rich", "plain"])
def test_every_command_has_help_with_an_example(prime: Prime, path: tuple[str, ...], plain):
    result = prime(*path, "--help", *plain)
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"prime {' '.join(path)}" in result.stdout.split("Examples:")[1]
    assert "--plain" in result.stdout
    assert "--output" in result.stdout
    assert "JSON output (--output json):" in result.stdout
    assert ("╭" in result.stdout) == (not plain)


@pytest.mark.parametrize("plain", [[], ["--plain"]], ids=["rich", "plain"])
def test_lists_in_the_shape_of_the_json_are_shown(prime: Prime, plain):
    assert (
        "{current, environments: [name, ...]}" in prime("config", "envs", "--help", *plain).stdout
    )


def test_the_version_is_the_packages(prime: Prime):
    for option in ("--version", "-v"):
        result = prime(option)
        assert (result.exit_code, result.stdout) == (
            0,
            f"Prime Inference version: {prime_inference.__version__}\n",
        )


@pytest.mark.parametrize("args", [[], ["inference"], ["config"], ["--plain"]])
def test_a_group_alone_shows_its_commands(prime: Prime, args: list[str]):
    assert "Usage: " in prime(*args).output


def test_help_loads_neither_http_nor_the_gateway_nor_an_engine():
    probe = "import sys, prime_inference.cli.main; print('\\n'.join(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "prime_inference.cli.chat" in loaded
    heavy = {"httpx", "asyncio", "uvloop", "ssl", "xllamacpp", "rich", "prime_inference.compose"}
    assert heavy.isdisjoint(loaded)
