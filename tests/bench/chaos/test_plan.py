"""A plan breaks much, never everything, and the same for the same seed."""

from __future__ import annotations

from random import Random

from prime_inference.bench.chaos.plan import LONGEST_S, Fault, Plan
from prime_inference.bench.chaos.run import DATACENTERS, GATEWAYS, Outcome, _is_refusal, _was_lost
from prime_inference.bench.faults.client import Answer


def faults(seed: int, seconds: float = 120.0) -> list[Fault]:
    return list(Plan(seconds, GATEWAYS, DATACENTERS, Random(seed)).faults())


def test_the_same_seed_breaks_the_same_things():
    assert faults(7) == faults(7)
    assert faults(7) != faults(8)


def test_a_gateway_and_a_deployment_are_whole_at_every_moment():
    for seed in range(200):
        plan = faults(seed)
        for kind, count in (("engine", len(DATACENTERS)), ("gateway", GATEWAYS)):
            mine = [fault for fault in plan if fault.kind == kind]
            for moment in (fault.at for fault in mine):
                down = {f.number for f in mine if f.at <= moment < f.at + f.lasting}
                assert len(down) < count, f"seed {seed}: every {kind} is down at {moment}"


def test_everything_that_can_break_breaks_in_every_way():
    seen = {(fault.kind, fault.deed) for seed in range(20) for fault in faults(seed)}
    assert seen == {
        ("engine", "kill"), ("engine", "freeze"), ("store", "kill"), ("store", "freeze"),
        ("gateway", "kill"), ("gateway", "freeze"), ("gateway", "drain"), ("clients", "burst"),
    }  # fmt: skip


def test_faults_are_in_order_and_within_their_bounds():
    plan = faults(1)
    assert [fault.at for fault in plan] == sorted(fault.at for fault in plan)
    assert all(fault.lasting <= LONGEST_S.get(fault.kind, 0.0) for fault in plan)


def test_only_a_request_in_the_hands_of_a_killed_gateway_is_lost():
    answer = Answer(gateway="gateway-1", sent=10.0, ended=12.0)
    assert _was_lost(answer, [(11.0, "gateway-1")])
    assert not _was_lost(answer, [(11.0, "gateway-0")])
    assert not _was_lost(answer, [(13.0, "gateway-1")])
    assert not _was_lost(answer, [(9.0, "gateway-1")])


def test_a_refusal_is_one_only_with_a_time_to_come_back():
    assert _is_refusal(Answer(status=503, retry_after=1.0))
    assert not _is_refusal(Answer(status=503))
    outcome = Outcome(False, 0.0, "text", [Answer(status=503, retry_after=1.0), Answer(status=200)])
    assert outcome.refusals == 1
