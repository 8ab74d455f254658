"""The fleet's file as it changes."""

from __future__ import annotations

import os

import pytest

from prime_inference.fleet.controller import run
from prime_inference.fleet.controller.controller import Controller
from prime_inference.fleet.controller.followed_fleet import FollowedFleet
from prime_inference.fleet.errors import SpecMalformed
from prime_inference.fleet.fleet import read_fleet

FLEET = """
name = "one"
[[datacenter]]
id = "a"
[[deployment]]
id = "x"
datacenter = "a"
spec = "./mine.toml"
changes = { limits = { slots = SLOTS } }
"""
SPEC = """
engine = "mocker"
model = { id = "a/b", revision = "REVISION", architecture = "qwen3-0.6b", source = "x", context_tokens = 4096 }
hardware = { gpu = "cpu", gpus = 1 }
topology = { workers = {} }
kv = { block_tokens = 16 }
limits = { slots = 1 }
"""  # noqa: E501


@pytest.fixture
def file(tmp_path):
    (tmp_path / "mine.toml").write_text(SPEC.replace("REVISION", "r1"))
    file = tmp_path / "fleet.toml"
    file.write_text(FLEET.replace("SLOTS", "11"))
    return file


def written(file, text):
    """At another time than before, whatever the clock's grain is."""
    before = file.stat().st_mtime_ns if file.exists() else 0
    file.write_text(text)
    os.utime(file, ns=(before + 1_000_000, before + 1_000_000))


async def no_list(ready, down):
    """Nobody follows it."""


def slots(fleet):
    return fleet.deployments[0].spec.limits.slots


def revision(fleet):
    return fleet.deployments[0].spec.model.revision


def test_what_does_not_change_is_not_read_again(file):
    followed = FollowedFleet(file)
    assert slots(followed.read()) == 11
    assert followed.changed() is None


def test_a_change_is_followed_from_the_moment_that_the_file_was_read(file, monkeypatch):
    """One in the middle of reading, or while the controller began, was once lost."""
    followed = FollowedFleet(file)

    def read(path, *, reading):
        fleet = read_fleet(path, reading=reading)
        written(file, FLEET.replace("SLOTS", "13"))
        return fleet

    with monkeypatch.context() as patched:
        patched.setattr("prime_inference.fleet.controller.followed_fleet.read_fleet", read)
        assert slots(followed.read()) == 11
    assert slots(followed.changed()) == 13
    assert followed.changed() is None


def test_a_spec_that_the_file_names_is_followed_too(file):
    followed = FollowedFleet(file)
    followed.read()
    spec = file.parent / "mine.toml"
    written(spec, SPEC.replace("REVISION", "r2"))
    assert revision(followed.changed()) == "r2"
    written(spec, "nonsense =")
    assert followed.changed() is None
    written(spec, SPEC.replace("REVISION", "r3"))
    assert revision(followed.changed()) == "r3"


def test_a_models_config_is_followed_too(file, caplog):
    config = file.parent / "config.json"
    config.write_text("{}")
    followed = FollowedFleet(file)
    written(file.parent / "mine.toml", SPEC.replace("qwen3-0.6b", "./config.json"))
    with pytest.raises(SpecMalformed):
        followed.read()
    assert followed.changed() is None
    written(config, '{"model_type": "nonsense"}')
    assert followed.changed() is None  # it was read, and is wrong
    (said,) = caplog.messages
    assert "config.json" in said


@pytest.mark.parametrize("how", ["gone", "loop", "no folder"])
def test_what_cannot_be_looked_at_changes_nothing_and_is_told_once(file, caplog, how):
    """It once stopped all steps, or was told at every one."""
    followed = FollowedFleet(file)
    followed.read()
    text = file.read_text()
    place = file.parent
    if how == "no folder":
        place = file.parent.rename(file.parent.with_name("elsewhere"))
        file.parent.write_text("")
    else:
        file.unlink()
    if how == "loop":
        file.symlink_to(file)
    for _ in range(3):
        assert followed.changed() is None
    assert len(caplog.messages) == 1
    assert "stays as it is" in caplog.messages[0]
    if how == "no folder":
        file.parent.unlink()
        place.rename(file.parent)
    file.unlink(missing_ok=True)
    written(file, text.replace("11", "12"))
    assert slots(followed.changed()) == 12


async def test_what_changed_while_a_controller_began_or_failed_is_wanted_before_its_first_step(
    file,
):
    followed = FollowedFleet(file)
    fleet = followed.read()
    wanted = []

    class Fails(Controller):
        def want(self, fleet):
            wanted.append(fleet[0].spec.limits.slots)

        async def step(self):
            raise RuntimeError("a defect")

    for count in (13, 14):  # the task is started again after a defect
        written(file, FLEET.replace("SLOTS", str(count)))
        with pytest.raises(RuntimeError, match="a defect"):
            await run._follow(Fails([], no_list), followed, fleet)
    assert wanted == [13, 14]
