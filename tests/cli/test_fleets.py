"""Which fleet a command is about, where it names none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from prime_inference.cli.failures import WrongUsage
from prime_inference.cli.fleets import found_folder
from prime_inference.cli.main import app
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


def test_ctrl_c_says_that_a_detached_fleet_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    child = SimpleNamespace(pid=1, poll=lambda: None)
    monkeypatch.setattr("prime_inference.fleet.launcher.run.detach", lambda *_, **__: child)
    monkeypatch.setattr("prime_inference.fleet.launcher.run.until_ready", interrupted)
    file = Path(__file__).parents[2] / "examples" / "two-datacenters-dynamo.toml"
    shown = CliRunner().invoke(
        app, ["inference", "fleet", "up", str(file), "--detach", "--state-dir", str(tmp_path)]
    )
    assert shown.exit_code == 130
    assert "The fleet goes on: prime inference fleet status, or down." in shown.output
