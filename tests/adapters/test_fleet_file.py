"""A fleet in a file: what it says, what is wrong with it, and that it has changed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from prime_inference.adapters.files.fleet_changes import FleetChanges
from prime_inference.adapters.files.fleet_file import FleetFile
from prime_inference.compose import ENGINE_PARAMETERS
from prime_inference.domain.fleet import FleetInvalid, Override
from prime_inference.domain.toml import read_toml

EXAMPLE = Path(__file__).parents[2] / "examples/two-datacenters.toml"
PLAIN = """
[[models]]
id = "acme/echo-1"
revision = "r1"
context_tokens = 4096
pricing = { prompt = "0.25", completion = "1" }

[[datacenters]]
id = "east"

[[deployments]]
id = "east-1"
model = "acme/echo-1"
datacenter = "east"
engine = "openai"
base_url = "http://127.0.0.1:9000/v1/"
slots = 8
"""


def source(folder: Path, text: str, *, launching: bool = False) -> FleetFile:
    path = folder / "fleet.toml"
    path.write_text(text)
    return fleet_file(path, launching=launching)


def fleet_file(path: Path, *, launching: bool = False) -> FleetFile:
    changes = path.with_name("changes.json")
    return FleetFile(path, ENGINE_PARAMETERS, launching=launching, changes=changes)


def refusal(folder: Path, text: str, *, launching: bool = False) -> str:
    with pytest.raises(FleetInvalid) as caught:
        source(folder, text, launching=launching).read()
    message = str(caught.value)
    assert message.startswith(f"{folder / 'fleet.toml'}: ")
    return message


def test_what_is_left_out_follows_from_the_engine_and_the_model(tmp_path: Path):
    fleet = source(tmp_path, PLAIN).read()
    (model,), (deployment,) = fleet.models, fleet.deployments
    assert (model.max_output_tokens, model.pricing.prompt) == (4096, "0.25")
    assert deployment.base_url == "http://127.0.0.1:9000/v1"
    assert deployment.upstream_model == "acme/echo-1"
    assert deployment.parameters == ENGINE_PARAMETERS["openai"]
    assert deployment.routes == {"chat/completions"}
    assert not deployment.draining


def test_what_is_said_counts(tmp_path: Path):
    more = 'upstream_model = "m"\nparameters = ["stop"]\nroutes = ["embeddings"]\n'
    fleet = source(
        tmp_path, f"{PLAIN}{more}draining = true\nschema_alternatives = 7\ntokens_per_second = 90"
    ).read()
    (deployment,) = fleet.deployments
    assert (deployment.upstream_model, deployment.draining) == ("m", True)
    assert deployment.parameters == {"stop"}
    assert deployment.routes == {"embeddings"}
    assert deployment.schema_alternatives == 7
    assert deployment.tokens_per_second == 90


def test_the_example_has_two_datacenters_of_two_deployments_that_are_started_here():
    fleet = fleet_file(EXAMPLE, launching=True).read()
    assert fleet.datacenters == ("east", "west")
    places = [deployment.datacenter for deployment in fleet.deployments]
    assert sorted(places) == ["east", "east", "west", "west"]
    assert {launch.engine for launch in fleet.launches.values()} == {"mock"}
    assert fleet.launches.keys() == {deployment.id for deployment in fleet.deployments}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("slots = 8", "slotz = 8", "deployments[0]: there is no key slotz. Did you mean slots"),
        ("prompt =", "promt =", "models[0].pricing: there is no key promt. Did you mean prompt"),
        ("[[datacenters]]", "[[datacentres]]", "the top: there is no key datacentres. Did you"),
        ("slots = 8", 'slots = "8"', "deployments[0].slots"),
        ("slots = 8", "slots = 0", "deployments[0].slots"),
        ("slots = 8", "", "missing required field `slots`"),
        ("slots = 8", "slots = ", "at line 17"),
        ('engine = "openai"', 'engine = "vlm"', "deployments[0].engine"),
        ('datacenter = "east"', 'datacenter = "eest"', "not there: eest. Did you mean east"),
        ('model = "acme/echo-1"', 'model = "acme/echo"', "Did you mean acme/echo-1"),
        ('id = "east"', 'id = "east"\n[[datacenters]]\nid = "east"', "Two datacenters are named"),
        ("slots = 8", 'slots = 8\nparameters = ["sed"]', "not known: sed. Did you mean seed"),
        ('prompt = "0.25"', 'prompt = "cheap"', "pricing.prompt is no price: 'cheap'"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, before: str, after: str, said: str):
    assert before in PLAIN
    assert said in refusal(tmp_path, PLAIN.replace(before, after, 1))


def test_a_file_without_models_or_that_is_not_there_is_refused(tmp_path: Path):
    assert "There are no models." in refusal(
        tmp_path, "models = []\ndatacenters = []\ndeployments = []"
    )
    with pytest.raises(FleetInvalid, match="cannot be read: No such file"):
        fleet_file(tmp_path / "none.toml").read()


def test_only_mock_and_llama_cpp_are_started_here_and_only_by_serve(tmp_path: Path):
    homeless = PLAIN.replace('base_url = "http://127.0.0.1:9000/v1/"\n', "")
    assert "`serve` starts engines, `gateway` does not" in refusal(tmp_path, homeless)
    assert "openai is not" in refusal(tmp_path, homeless, launching=True)
    llama = homeless.replace('"openai"', '"llama.cpp"') + 'model_file = "m.gguf"'
    (launch,) = source(tmp_path, llama, launching=True).read().launches.values()
    assert launch.model_file == tmp_path / "m.gguf"


def test_a_change_of_the_file_is_seen_once(tmp_path: Path):
    file = source(tmp_path, PLAIN)
    assert [file.changed(), file.changed()] == [False, True]  # nobody has read it yet
    file.read()
    assert not file.changed()
    draft = tmp_path / "draft"
    draft.write_text(PLAIN.replace("slots = 8", "slots = 9"))
    draft.replace(tmp_path / "fleet.toml")  # as editors do, and within the same tick of the clock
    assert [file.changed(), file.changed()] == [False, True]
    (deployment,) = file.read().deployments
    assert (deployment.slots, file.changed()) == (9, False)
    (tmp_path / "fleet.toml").unlink()
    assert [file.changed(), file.changed()] == [False, True]


SECOND = {
    "id": "east-2",
    "model": "acme/echo-1",
    "datacenter": "east",
    "engine": "vllm",
    "base_url": "http://127.0.0.1:9001/v1",
    "slots": 4,
}


def test_edits_are_laid_over_the_file_and_last(tmp_path: Path):
    file = source(tmp_path, PLAIN)
    file.add(SECOND)
    file.drain("east-1", draining=True)
    file.move("east-2", {"slots": 5})
    first, second = fleet_file(tmp_path / "fleet.toml").read().deployments
    assert (first.id, first.draining) == ("east-1", True)
    assert (second.id, second.draining, second.slots) == ("east-2", False, 5)
    file.drain("east-1", draining=False)
    file.remove("east-2")
    (first,) = file.read().deployments
    assert not first.draining
    file.remove("east-1")
    assert file.read().deployments == ()
    file.add({**SECOND, "id": "east-1"})
    (first,) = file.read().deployments
    assert first.base_url == SECOND["base_url"]
    assert (tmp_path / "fleet.toml").read_text() == PLAIN


def test_after_a_drain_and_a_resume_the_file_counts_again(tmp_path: Path):
    file = source(tmp_path, PLAIN)
    (name,) = (one.id for one in file.read().deployments)
    file.drain(name, draining=True)
    file.drain(name, draining=False)
    source(tmp_path, f"{PLAIN}draining = true")
    (deployment,) = file.read().deployments
    assert deployment.draining


@pytest.mark.parametrize("name", ["", "a/b", "..", "a\nb", "a" * 129, "é"])
def test_an_id_is_fit_for_logs_labels_and_paths(tmp_path: Path, name: str):
    text = re.sub(r'(?m)^id = "[^"]*"', lambda _: f"id = {json.dumps(name)}", PLAIN)
    assert "cannot be a deployment's id" in refusal(tmp_path, text) or not name


def test_an_edit_that_cannot_be_is_refused_and_not_kept(tmp_path: Path):
    file = source(tmp_path, PLAIN)
    before = file.read()
    for edit, said in (
        (lambda: file.add({**SECOND, "slotz": 1}), "Did you mean slots"),
        (lambda: file.add({**SECOND, "id": "east-1"}), "already"),
        (lambda: file.add({**SECOND, "base_url": "https://x"}), "base_url is not an http://"),
        (lambda: file.add({}), "missing required field"),
        (lambda: file.drain("east-3", draining=True), "Did you mean east-1"),
        (lambda: file.move("east-1", {"datacenter": "west"}), "not there: west"),
        (lambda: file.remove("west-1"), "There is no deployment west-1."),
    ):
        with pytest.raises(FleetInvalid, match=said):
            edit()
    assert file.read() == before


def test_an_edit_can_be_taken_back(tmp_path: Path):
    file = source(tmp_path, PLAIN)
    before = file.read()
    file.add(SECOND)
    file.undo()
    assert file.read() == before


def test_edits_in_force_are_told_and_idle_ones_are_not(tmp_path: Path):
    file = source(tmp_path, PLAIN)
    assert file.overrides() == []
    file.add(SECOND)
    file.drain("east-2", draining=True)
    file.move("east-1", {"slots": 3})
    added = {key: value for key, value in SECOND.items() if key != "id"}
    assert file.overrides() == [
        Override("east-1", "moved", {"slots": 3}),
        Override("east-2", "added", added),
        Override("east-2", "drained"),
    ]
    file.remove("east-2")  # the file never had it: nothing is left of it
    (tmp_path / "fleet.toml").write_text(PLAIN.replace("slots = 8", "slots = 3"))
    assert file.overrides() == []  # the file says the same by now
    (tmp_path / "fleet.toml").write_text(PLAIN + "draining = true\n")
    file.drain("east-1", draining=False)
    assert [one.change for one in file.overrides()] == ["moved", "resumed"]
    file.remove("east-1")
    assert file.overrides() == [Override("east-1", "removed")]


def test_an_id_that_only_an_operator_had_added_and_removed_is_free_for_the_file(tmp_path: Path):
    file = source(tmp_path, PLAIN)
    file.add(SECOND)
    file.drain("east-2", draining=True)
    file.remove("east-2")
    assert FleetChanges.load(tmp_path / "changes.json") == FleetChanges()
    entry = PLAIN[PLAIN.index("[[deployments]]") :].replace("east-1", "east-2")
    (tmp_path / "fleet.toml").write_text(PLAIN + entry)
    assert [one.id for one in file.read().deployments] == ["east-1", "east-2"]


def test_changes_that_are_damaged_are_said(tmp_path: Path):
    file = source(tmp_path, PLAIN)
    (tmp_path / "changes.json").write_text("{")
    with pytest.raises(FleetInvalid, match=r"changes\.json: it cannot be read"):
        file.read()


def test_a_file_that_is_being_written_is_not_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text("a = 1\n")
    file = FleetFile(path, {}, launching=False, changes=tmp_path / "changes.json")
    assert not file.changed()
    for number in range(5):  # a piece is written between any two looks
        with path.open("a") as writer:
            writer.write(f"b{number} = 1\n")
        assert not file.changed()
    assert file.changed()


def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_bytes(b"\xef\xbb\xbfa = 1\n")
    assert read_toml(path) == {"a": 1}
