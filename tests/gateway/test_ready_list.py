"""A gateway that follows the list of ready deployments, while it changes."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from prime_inference.adapters.files.ready_fleet import ReadyFleet
from prime_inference.compose import ENGINE_PARAMETERS
from prime_inference.engines.mock import MockEngine, expected_text
from prime_inference.fleet.ready import ReadyDeployment, ready_document

from .conftest import StartGateway
from .running import CONTEXT_TOKENS, MESSAGES, RunningGateway, eventually

CUT = "mock/cut-after-3"


def entry(name: str, engine: MockEngine, revision: str) -> ReadyDeployment:
    return ReadyDeployment(
        id=name,
        model=CUT,
        revision=revision,
        datacenter="dc-a",
        base_url=engine.base_url,
        slots=8,
        context_tokens=CONTEXT_TOKENS,
        max_output_tokens=CONTEXT_TOKENS,
    )


class FollowedList:
    """The file, and the gateway that follows it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "deployments.json"
        self._ready = ReadyFleet(self._path, ENGINE_PARAMETERS["dynamo"], lambda: 1_000.0)
        self._times = 0

    async def write(self, *entries: ReadyDeployment | bytes) -> None:
        """Replace the file, and wait until the gateway serves what it says."""
        sound = [one for one in entries if isinstance(one, ReadyDeployment)]
        text = ready_document(sound)
        for one in entries:
            if isinstance(one, bytes):
                text = text.replace(b'"deployments":[', b'"deployments":[' + one + b",")
        before = self._times
        draft = self._path.with_suffix(".draft")
        draft.write_bytes(text)
        draft.replace(self._path)
        await eventually(lambda: self._times > before, 10)

    async def gateway(self, start_gateway: StartGateway) -> RunningGateway:
        def follow(live):
            def serve(fleet):
                live.replace(fleet)
                self._times += 1

            return self._ready.follow(serve, live.said_down, live.refuse)

        return await start_gateway(follow=follow)


async def test_an_answer_never_goes_on_with_other_weights(
    tmp_path: Path, start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    """Where nobody else has the revision that began it, it ends with an error that says so."""
    listed = FollowedList(tmp_path)
    gateway = await listed.gateway(start_gateway)
    await listed.write(entry("old", engine, "weights-1"), entry("new", spare, "weights-2"))
    for _ in range(4):  # whichever of them begins
        streamed = await gateway.stream(model=CUT)
        assert streamed.error is not None
        assert streamed.error["type"] == "upstream_error"
        assert streamed.error["metadata"]["not_continued"] == "no_other_deployment"
        assert not streamed.done
        assert streamed.text() == expected_text(MESSAGES, 3)
    assert len(engine.requests) + len(spare.requests) == 4
    assert await gateway.metric("prime_continuations_total") == 0


async def test_it_goes_on_with_the_same_weights(
    tmp_path: Path, start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    listed = FollowedList(tmp_path)
    gateway = await listed.gateway(start_gateway)
    await listed.write(entry("a", engine, "weights-1"), entry("b", spare, "weights-1"))
    await gateway.stream(model=CUT)
    assert engine.requests
    assert spare.requests


async def test_the_models_endpoint_follows_a_roll_out(
    tmp_path: Path, start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    listed = FollowedList(tmp_path)
    gateway = await listed.gateway(start_gateway)
    old = entry("old", engine, "weights-1")
    new = replace(entry("new", spare, "weights-2"), context_tokens=50, max_output_tokens=50)
    shown = []
    for entries in ([old], [old, new], [new]):
        await listed.write(*entries)
        (model,) = (await gateway.get("/models")).json()["data"]
        shown.append((model["revisions"], model["context_length"]))
    assert shown == [
        (["weights-1"], CONTEXT_TOKENS),
        (["weights-1", "weights-2"], 50),
        (["weights-2"], 50),
    ]
    (endpoint,) = (await gateway.get(f"/models/{CUT}/endpoints")).json()["data"]["endpoints"]
    assert endpoint["revision"] == "weights-2"


async def test_what_was_begun_at_an_address_is_of_the_revision_of_then(
    tmp_path: Path, start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    """The same deployment comes back with other weights while an answer of it is being written."""
    model = "mock/cut-after-4.pace-400ms"
    listed = FollowedList(tmp_path)
    gateway = await listed.gateway(start_gateway)
    old = replace(entry("a", engine, "weights-1"), model=model)
    other = replace(entry("b", spare, "weights-2"), model=model)
    await listed.write(old)
    body = {"model": model, "stream": True, "messages": MESSAGES}
    async with gateway.client.stream(
        "POST", gateway.url("/chat/completions"), json=body, headers=gateway.authorization()
    ) as answer:
        begun = answer.aiter_bytes()
        await anext(begun)
        await listed.write(replace(old, revision="weights-2"), other)
        rest = b"".join([part async for part in begun])
    assert b'"error"' in rest
    assert spare.requests == []


async def test_a_bad_entry_costs_only_itself_and_an_operator_sees_it(
    tmp_path: Path, start_gateway: StartGateway, engine: MockEngine
):
    listed = FollowedList(tmp_path)
    gateway = await listed.gateway(start_gateway)
    good = replace(entry("good", engine, "r"), model="mock/plain")
    bad = ready_document([replace(good, id="bad")]).partition(b"[")[2].rpartition(b'],"down"')[0]
    await listed.write(bad.replace(b'"slots":8', b'"slots":0'), good)
    assert (await gateway.chat(model="mock/plain")).status_code == 200
    assert await gateway.metric("prime_fleet_refused", deployment="bad") == 1
    url = f"{gateway.control_url}/fleet"
    view = await gateway.client.get(url, headers=gateway.authorization())
    assert list(view.json()["refused"]) == ["bad"]
    await listed.write(good)
    assert await gateway.metric("prime_fleet_refused") == 0
