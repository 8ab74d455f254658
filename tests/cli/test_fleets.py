"""Which fleet a command is about, where it names none."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_inference.cli.failures import WrongUsage
from prime_inference.cli.fleets import found_folder
from prime_inference.fleet.launcher.state import StateFolder


def _folders(state_dir: Path, up: str) -> None:
    for name in "abc":
        folder = StateFolder(state_dir / "fleets" / name)
        folder.create()
        if name in up:
            folder.socket.touch()


def test_a_fleet_that_is_not_named_is_the_one_that_is_up(tmp_path: Path) -> None:
    _folders(tmp_path, up="b")
    assert found_folder(None, tmp_path).folder.name == "b"
    assert found_folder("a", tmp_path).folder.name == "a"


@pytest.mark.parametrize("up", ["", "ac"])
def test_of_several_fleets_one_must_be_named(tmp_path: Path, up: str) -> None:
    _folders(tmp_path, up=up)
    with pytest.raises(WrongUsage, match="--fleet: a, b, c"):
        found_folder(None, tmp_path)
