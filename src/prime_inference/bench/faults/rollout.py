"""Gateways and deployments that are replaced, moved or killed while requests are served."""

from __future__ import annotations

import asyncio

from prime_inference.bench.faults.replica import Clocks
from prime_inference.bench.faults.scenario import Scenario, Scene, judge_all
from prime_inference.bench.faults.scorecard import Finding
from prime_inference.bench.faults.stage import PACE, Deployment, Setting, Stage, staged
from prime_inference.bench.faults.traffic import traffic
from prime_inference.engines.mock import MockEngine

RATE = 15.0
FLEET = Setting(("east", "west"), gateways=3, store=True, first_token=0.02, slots=256)


async def rolling_restart(scene: Scene) -> Finding:
    """All gateways are restarted one after the other: no request fails, none is cut."""
    finding = Finding()
    async with staged(scene.folder, FLEET) as stage:
        statuses = []
        async with traffic(stage.gateways, RATE) as flow:
            await asyncio.sleep(1)
            for gateway in stage.gateways:
                statuses.append(await gateway.drain())
                await gateway.start()
                await asyncio.sleep(0.5)
        judge_all(finding, flow.answers)
        finding.attempts = stage.attempts
        finding.check("ended_by_themselves", statuses == [0, 0, 0], statuses)
    return finding


async def gateway_killed(scene: Scene) -> Finding:
    """A gateway that is killed takes only the requests in its hands; its slots come back."""
    finding = Finding()
    async with staged(scene.folder, FLEET) as stage:
        victim = stage.gateways[1]
        async with traffic(stage.gateways, RATE) as flow:
            await asyncio.sleep(3)
            await victim.kill()
            await asyncio.sleep(4 if scene.quick else 14)
            await victim.start()
            await asyncio.sleep(1)
        lost = [a for a in flow.answers if not a.success and a.gateway == victim.folder.name]
        others = [answer for answer in flow.answers if answer not in lost]
        judge_all(finding, others)
        finding.outcome += f", {len(lost)} lost with it"
        finding.attempts = stage.attempts
        most = RATE  # a third of the requests of about a second, thrice
        finding.check("only_in_its_hands", len(lost) <= most, f"{len(lost)} lost")
        broken = sum(not answer.error for answer in lost)
        finding.check("lost_ones_look_lost", broken == 0, f"{broken} without an error")
    return finding


async def gateway_frozen(scene: Scene) -> Finding:
    """A gateway that stood still for longer than its clocks takes no engine for dead.

    Stopped in the middle of 20 streams and woken after 6 s, with clocks of 2 s.
    """
    finding = Finding()
    setting = Setting(slots=256, clocks=Clocks(connect=2.0, first_token=2.0, idle=2.0))
    async with staged(scene.folder, setting) as stage:
        streams = [asyncio.create_task(stage.ask()) for _ in range(20)]
        await asyncio.sleep(0.4)
        stage.gateway.freeze()
        await asyncio.sleep(6)
        stage.gateway.thaw()
        judge_all(finding, list(await asyncio.gather(*streams)))
        finding.attempts = stage.attempts
        view = await stage.fleet(stage.gateway)
        states = [one["breaker"] for one in view]
        finding.check("no_breaker_opened", set(states) == {"closed"}, states)
        failed = sum(one["failed"] for one in view)
        finding.check("no_attempt_failed", failed == 0, f"{failed} failed")
    return finding


async def deployment_moves(scene: Scene) -> Finding:
    """A deployment is added and two are removed while traffic flows: nobody notices."""
    finding = Finding()
    async with staged(scene.folder, FLEET) as stage:
        engine = MockEngine(pace=PACE, answer_tokens=60)
        await engine.start()
        async with traffic(stage.gateways, RATE) as flow:
            await asyncio.sleep(1.5)
            stage.deployments["north"] = Deployment("north", "dc-north", engine, slots=256)
            stage.write_fleet()
            await asyncio.sleep(3)
            stage.write_fleet([stage.deployments[name] for name in ("north", "west")])
            await asyncio.sleep(3)
            removed = stage.deployments["east"].engine.load.in_flight
            stage.write_fleet([stage.deployments["north"]])
            await asyncio.sleep(3)
        judge_all(finding, flow.answers)
        finding.attempts = stage.attempts
        new = stage.deployments["north"].attempts
        finding.check("new_one_serves", new > 0, f"{new} requests")
        finding.check("old_one_ends", removed == 0, f"{removed} on the removed one")
        finding.check("all_moved", *_moved(stage))
    return finding


def _moved(stage: Stage) -> tuple[bool, str]:
    left = stage.deployments["west"].engine.load.in_flight
    return left == 0, f"{left} left on the last one removed"


ROLLOUT = (
    Scenario("F15", "Rolling restart of all gateways", rolling_restart),
    Scenario("F16", "A gateway is killed", gateway_killed),
    Scenario("F22", "A gateway is frozen and woken", gateway_frozen),
    Scenario("F17", "Deployments added and removed", deployment_moves),
)
