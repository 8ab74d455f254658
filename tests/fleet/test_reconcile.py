"""The controller's decisions, by example and over random histories."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from prime_inference.fleet.catalogue import find_spec
from prime_inference.fleet.controller.overflow import (
    Add,
    GiveUp,
    ModelLoad,
    Offer,
    Overflow,
    OverflowSettings,
    Remove,
    Waiting,
)
from prime_inference.fleet.controller.reconcile import Found, digest, instance_name, reconcile
from prime_inference.fleet.fleet import PlannedDeployment

SPEC = find_spec("mocker")


def planned(name, version=1, datacenter="a"):
    limits = replace(SPEC.limits, slots=version)
    return PlannedDeployment(name, datacenter, replace(SPEC, limits=limits))


def want(*deployments):
    return [(one, digest(one)) for one in deployments]


def found(one, state="ready"):
    content = digest(one)
    name = instance_name(one, content)
    return Found(name, one.id, content, one.datacenter, one.spec.model.id, state, f"http://{name}")


OLD, NEW, OTHER = planned("x"), planned("x", 2), planned("y")


def test_what_is_missing_is_started():
    decision = reconcile(want(OLD), [], surge={})
    assert [start.planned for start in decision.starts] == [OLD]
    assert not decision.listed
    assert not decision.drains


def test_what_is_ready_is_listed_and_what_is_not_is_waited_for():
    assert reconcile(want(OLD), [found(OLD)], surge={}).listed == [found(OLD)]
    for state in ("starting", "failing", "draining"):
        decision = reconcile(want(OLD), [found(OLD, state)], surge={})
        assert not (decision.listed)
        assert decision.drains == ([found(OLD, state)] if state == "draining" else [])
        assert not (decision.starts)


def test_what_nobody_wants_is_drained_until_it_is_gone_whoever_began():
    there = [found(OLD), found(OTHER, "draining")]
    decision = reconcile([], there, surge={})
    assert sorted(one.name for one in decision.drains) == sorted(one.name for one in there)
    assert decision.listed == []


def test_what_is_draining_keeps_no_change_from_beginning_and_may_come_back():
    """Its controller was killed in the drain, say: it goes on, and other content starts."""
    draining = found(OLD, "draining")
    decision = reconcile(want(NEW), [draining], surge={"a": 1})
    assert decision.drains == [draining]
    assert [start.planned for start in decision.starts] == [NEW]
    full = reconcile(want(NEW), [draining], surge={})
    assert (full.drains, full.starts) == ([draining], [])
    back = reconcile(want(OLD), [draining, found(NEW)], surge={"a": 1})
    assert (back.drains, back.starts, back.listed) == ([draining], [], [found(NEW)])


def test_what_is_there_and_stays_is_kept_whole():
    old, new = replace_planned(found(OLD), OLD), found(NEW, "starting")
    kept = reconcile(want(NEW), [old, new], surge={"a": 1}).kept
    assert {start.name: start.planned for start in kept} == {new.name: NEW, old.name: OLD}
    done = reconcile(want(NEW), [old, found(NEW)], surge={"a": 1})
    assert [start.name for start in done.kept] == [new.name]


def test_a_changed_deployment_starts_beside_the_old_one():
    decision = reconcile(want(NEW), [found(OLD)], surge={"a": 1})
    assert [start.planned for start in decision.starts] == [NEW]
    assert decision.listed == [found(OLD)]
    assert decision.drains == []


def test_the_old_one_goes_when_the_new_one_is_ready():
    starting = [found(OLD), found(NEW, "starting")]
    assert reconcile(want(NEW), starting, surge={"a": 1}).listed == [found(OLD)]
    decision = reconcile(want(NEW), [found(OLD), found(NEW)], surge={"a": 1})
    assert decision.listed == [found(NEW)]
    assert decision.drains == [found(OLD)]


def test_replacements_share_the_room_there_is():
    wanted = want(NEW, planned("y", 2))
    decision = reconcile(wanted, [found(OLD), found(OTHER)], surge={"a": 1})
    assert len(decision.starts) == 1
    assert len(decision.listed) == 2


def test_without_room_the_old_one_goes_first_but_not_the_last_that_serves():
    alone = reconcile(want(NEW), [found(OLD)], surge={})
    assert alone.listed == [found(OLD)]
    assert not (alone.drains)
    assert not (alone.starts)
    both = reconcile(want(NEW, planned("y", 2)), [found(OLD), found(OTHER)], surge={})
    assert both.drains == [found(OLD)]
    assert both.listed == [found(OTHER)]


def test_a_broken_old_one_makes_room_at_once():
    decision = reconcile(want(NEW), [found(OLD, "failing")], surge={})
    assert decision.drains == [found(OLD, "failing")]


@pytest.mark.parametrize("state", ["starting", "crash-looping", "failing"])
def test_one_that_served_may_serve_again_before_its_replacement_does(state):
    """A frontend that is started again must not end a deployment whose change never starts."""
    decision = reconcile(want(NEW), [found(OLD, "failing"), found(NEW, state)], surge={"a": 1})
    assert (decision.listed, decision.drains) == ([], [])
    decision = reconcile(want(NEW), [found(OLD, "failing")], surge={"a": 1})
    assert [start.planned for start in decision.starts] == [NEW]
    assert decision.drains == []
    never = reconcile(want(NEW), [found(OLD, "starting"), found(NEW, state)], surge={"a": 1})
    assert never.drains == [found(OLD, "starting")]


RENAMED, ELSEWHERE = planned("renamed"), planned("moved", datacenter="b")


@pytest.mark.parametrize("heir", [RENAMED, ELSEWHERE, planned("renamed", 2)])
@pytest.mark.parametrize("state", [None, "starting", "crash-looping", "failing"])
def test_one_that_is_renamed_or_moved_goes_on_until_its_successor_serves(heir, state):
    there = [found(OLD), *([found(heir, state)] if state else [])]
    decision = reconcile(want(heir), there, surge={"a": 1})
    assert [start.planned for start in decision.starts] == ([heir] if state is None else [])
    assert (decision.listed, decision.drains) == ([found(OLD)], [])
    done = reconcile(want(heir), [found(OLD), found(heir)], surge={"a": 1})
    assert (done.listed, done.drains) == ([found(heir)], [found(OLD)])


def test_a_renamed_one_that_fails_may_serve_again_before_its_successor_does():
    decision = reconcile(want(RENAMED), [found(OLD, "failing")], surge={"a": 1})
    assert [start.planned for start in decision.starts] == [RENAMED]
    assert decision.drains == []
    never = reconcile(want(RENAMED), [found(OLD, "starting")], surge={"a": 1})
    assert never.drains == [found(OLD, "starting")]


def test_those_that_are_renamed_go_one_after_another_as_those_that_change():
    heirs = want(planned("x2"), planned("y2"))
    first = reconcile(heirs, [found(OLD), found(OTHER)], surge={"a": 1})
    assert [start.planned.id for start in first.starts] == ["x2"]
    assert first.listed == [found(OLD), found(OTHER)]
    second = [found(planned("x2")), found(OLD, "draining"), found(OTHER)]
    decision = reconcile(heirs, second, surge={"a": 1})
    assert decision.starts == []  # what still ends takes up the room
    third = reconcile(heirs, [found(planned("x2")), found(OTHER)], surge={"a": 1})
    assert [start.planned.id for start in third.starts] == ["y2"]


def test_without_room_a_renamed_one_goes_first_but_not_the_last_that_serves():
    alone = reconcile(want(RENAMED), [found(OLD)], surge={})
    assert (alone.listed, alone.drains, alone.starts) == ([found(OLD)], [], [])
    assert alone.stuck == ["renamed"]
    both = reconcile(want(RENAMED, OTHER), [found(OLD), found(OTHER)], surge={})
    assert (both.drains, both.listed) == ([found(OLD)], [found(OTHER)])
    ends = [found(OLD, "draining"), found(OTHER)]
    assert reconcile(want(RENAMED, OTHER), ends, surge={}).starts == []
    gone = reconcile(want(RENAMED, OTHER), [found(OTHER)], surge={})
    assert [start.planned for start in gone.starts] == [RENAMED]


def test_one_that_is_removed_goes_at_once_if_another_of_its_model_serves():
    decision = reconcile(want(OTHER), [found(OLD), found(OTHER)], surge={"a": 1})
    assert (decision.listed, decision.drains) == ([found(OTHER)], [found(OLD)])
    broken = reconcile(want(OTHER), [found(OLD), found(OTHER, "failing")], surge={"a": 1})
    assert (broken.listed, broken.drains) == ([found(OLD)], [])
    model = replace(SPEC.model, id="other/model")
    foreign = PlannedDeployment("z", "a", replace(SPEC, model=model))
    other = reconcile(want(foreign), [found(OLD)], surge={"a": 1})
    assert other.drains == [found(OLD)]


def test_what_a_silent_datacenter_was_last_known_to_serve_lets_nothing_be_drained():
    moved = [found(OLD), found(ELSEWHERE)]
    heard = reconcile(want(ELSEWHERE), moved, surge={})
    assert heard.drains == [found(OLD)]
    silent = reconcile(want(ELSEWHERE), moved, surge={}, silent={"b"})
    assert silent.drains == []
    assert sorted(one.name for one in silent.listed) == sorted(one.name for one in moved)
    there = [found(OLD), found(planned("y", datacenter="b"))]
    no_room = want(NEW, planned("y", datacenter="b"))
    assert reconcile(no_room, there, surge={}).drains == [found(OLD)]
    assert reconcile(no_room, there, surge={}, silent={"b"}).drains == []


def test_a_deployment_that_moves_needs_no_room_where_nothing_of_it_is():
    moved = planned("x", datacenter="b")
    decision = reconcile(want(moved), [found(OLD)], surge={})
    assert [start.planned for start in decision.starts] == [moved]
    assert decision.listed == [found(OLD)]


def test_a_replacement_that_crash_loops_gives_way_to_others_that_wait_and_comes_after_them():
    """One broken roll-out once stopped all others of its datacenter."""
    broken, other = found(NEW, "crash-looping"), planned("y", 2)
    wanted = want(NEW, other)
    decision = reconcile(wanted, [found(OLD), broken, found(OTHER)], surge={"a": 1})
    assert (decision.drains, decision.gave_way) == ([broken], [broken.name])
    assert decision.listed == [found(OLD), found(OTHER)]
    assert broken.name not in [start.name for start in decision.kept]
    for state in ("starting", "failing"):
        slow = found(NEW, state)
        there = [found(OLD), slow, found(OTHER)]
        assert reconcile(wanted, there, surge={"a": 1}).drains == []
        assert reconcile(wanted, there, surge={"a": 1}, late={slow.name}).drains == [slow]
    alone = reconcile(want(NEW, OTHER), [found(OLD), broken, found(OTHER)], surge={"a": 1})
    assert (alone.drains, alone.gave_way) == ([], [])  # nobody waits
    gone = [found(OLD), found(OTHER)]
    after = reconcile(wanted, gone, surge={"a": 1}, later={broken.name})
    assert [start.planned for start in after.starts] == [other]
    again = reconcile(wanted, [found(OLD), found(other)], surge={"a": 1}, later={broken.name})
    assert [start.planned for start in again.starts] == [NEW]


def test_the_content_of_a_deployment_names_its_instance():
    assert digest(OLD) == digest(planned("x"))
    assert digest(OLD) != digest(NEW)
    assert digest(OLD) != digest(planned("x", datacenter="b"))
    assert instance_name(OLD, digest(OLD)).startswith("x-")


def calls_of(work):
    """Calls that `work` makes, of Python's functions and of built-in ones."""
    count = 0

    def counted(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("name", ["d", "e"])
def test_twice_the_fleet_is_twice_the_work(name, version):
    """Whether nothing changed or everything did, names too."""

    def calls(size):
        there = [found(planned(f"d{at}")) for at in range(size)]
        wanted = want(*(planned(f"{name}{at}", version) for at in range(size)))
        return calls_of(lambda: reconcile(wanted, there, surge={"a": size}))

    assert calls(400) < 2.2 * calls(200)


# -- random histories


class World:
    """Datacenters in which starts and drains take a while and readiness comes by itself."""

    def __init__(self):
        self.instances = {}

    def carry_out(self, decision, silent):
        for one in decision.drains:
            assert one not in decision.listed
            if one.datacenter not in silent:
                self.instances[one.name] = replace_state(one, "draining")
        for start in decision.starts:
            assert start.name not in self.instances
            if start.planned.datacenter not in silent:
                self.instances[start.name] = found(start.planned, "starting")

    def advance(self, name):
        one = self.instances[name]
        if one.state == "draining":
            del self.instances[name]
        else:
            self.instances[name] = replace_state(one, "ready")

    def fail(self, name):
        if self.instances[name].state == "ready":
            self.instances[name] = replace_state(self.instances[name], "failing")


def replace_state(one, state):
    return dataclasses.replace(one, state=state)


def replace_planned(one, planned):
    return dataclasses.replace(one, planned=planned)


def changed(data, versions, mark):
    """What a fleet's file may become; `mark` makes a name that it has not had."""
    name = data.draw(st.sampled_from(sorted(versions)))
    datacenter, version = versions.pop(name)
    match data.draw(st.sampled_from(["content", "name", "place", "one less"])):
        case "content":
            versions[name] = (datacenter, data.draw(st.integers(1, 4)))
        case "name":
            versions[f"{name[0]}{mark}"] = (datacenter, version)
        case "place":
            versions[name] = (data.draw(st.sampled_from("ab")), version)
        case "one less" if len(versions) < 2:  # a single one waits for ever where surge is 0
            versions[name] = (datacenter, version)


@settings(max_examples=60, deadline=None, phases=[Phase.generate])
@given(st.data())
def test_a_model_that_serves_goes_on_serving_whatever_is_replaced(data):
    """Over any order of changes and progress, with room for `surge` replacements."""
    world = World()
    surge = {"a": data.draw(st.integers(0, 2)), "b": data.draw(st.integers(0, 2))}
    versions = {"x": ("a", 1), "y": ("b", 1), "z": ("a", 1)}

    def step(silent=()):
        wanted = want(*(planned(name, v, dc) for name, (dc, v) in versions.items()))
        before = list(world.instances.values())
        decision = reconcile(wanted, before, surge=surge, silent=silent)
        ready = [one for one in before if one.state == "ready" and one.datacenter not in silent]
        assert not ready or any(one in decision.listed for one in ready), before
        assert all(one.state == "ready" for one in decision.listed)
        assert max(Counter(one.deployment for one in decision.listed).values(), default=0) <= 2
        assert len({one.name for one in decision.listed}) == len(decision.listed)
        world.carry_out(decision, silent)
        return decision

    for mark in range(data.draw(st.integers(1, 12))):
        step(data.draw(st.sampled_from([(), (), ("a",), ("b",)])))
        if world.instances:
            for name in data.draw(st.sets(st.sampled_from(sorted(world.instances)))):
                world.advance(name)
        match data.draw(st.sampled_from(["", "change", "change", "failure"])):
            case "change":
                changed(data, versions, mark)
            case "failure" if world.instances:
                world.fail(data.draw(st.sampled_from(sorted(world.instances))))
    for _ in range(60):  # left alone, it arrives
        step()
        for name in sorted(world.instances):
            world.advance(name)
    decision = step()
    assert sorted(one.deployment for one in decision.listed) == sorted(versions)
    assert not (decision.starts)
    assert not (decision.drains)
    assert len(world.instances) == len(versions)


# -- overflow


SETTINGS = OverflowSettings(full_seconds=60, idle_seconds=600, ready_seconds=300, gpu_budget=16)


def load(in_flight, slots=100, **fields):
    return ModelLoad(in_flight, slots, slots_each=50, **fields)


class Watched:
    def __init__(self, settings=SETTINGS):
        self.overflow = Overflow(settings)
        self.now = 0.0

    def after(self, seconds, one, free=None, offers=("a", "b")):
        self.now += seconds
        if isinstance(one, ModelLoad):
            one = {"m": one}
        spent = sum(8 * (len(each.extra) + len(each.waiting)) for each in one.values())
        offered = [Offer(datacenter, 8) for datacenter in offers]
        return self.overflow.decide(
            self.now, one, lambda _: offered, free or {"a": 8, "b": 8}, spent
        )


def test_a_model_that_stays_full_gets_another_deployment():
    watched = Watched()
    assert watched.after(0, load(90)) == []
    assert watched.after(59, load(90)) == []
    assert watched.after(2, load(90)) == [Add("m", "a")]


def test_a_burst_changes_nothing():
    watched = Watched()
    watched.after(0, load(90))
    assert watched.after(50, load(40)) == []
    assert watched.after(50, load(90)) == []
    assert watched.after(50, load(90)) == []


def test_overflow_goes_elsewhere_when_its_own_datacenter_is_full():
    watched = Watched()
    watched.after(0, load(90), free={"a": 4, "b": 8})
    assert watched.after(61, load(90), free={"a": 4, "b": 8}) == [Add("m", "b")]
    assert watched.after(61, load(90), free={"a": 4, "b": 0}) == []


def test_overflow_keeps_to_its_budget():
    watched = Watched()
    full = load(180, slots=200, extra=("e1", "e2"))
    watched.after(0, full)
    assert watched.after(61, full) == []
    one = {"m": load(90), "n": load(90), "o": load(90)}
    watched.after(0, one)
    assert len(watched.after(61, one)) == 2  # of three that are full


def test_nothing_is_judged_while_a_deployment_is_on_its_way():
    watched = Watched()
    for on_its_way in (load(0, 0, starting=True), load(90, waiting=(Waiting("e1"),))):
        watched.after(0, on_its_way)
        assert watched.after(100, on_its_way) == []


def test_one_that_does_not_get_ready_is_given_up_and_the_next_place_is_tried_at_once():
    watched = Watched()
    waits = load(90, waiting=(Waiting("e1"),))
    watched.after(0, waits)
    assert watched.after(299, waits) == []
    assert watched.after(2, waits) == [GiveUp("m", "e1")]
    assert watched.after(0, load(90), offers=("b",)) == [Add("m", "b")]
    hopeless = load(90, waiting=(Waiting("e2", hopeless=True),))
    assert watched.after(0, hopeless) == [GiveUp("m", "e2")]
    assert watched.after(0, load(90), offers=()) == []


def test_one_that_serves_now_and_then_is_given_up_only_if_it_fails_for_long():
    watched = Watched()
    for _ in range(5):
        assert watched.after(299, load(90, waiting=(Waiting("e1"),))) == []
        assert watched.after(0, load(90, slots=150, extra=("e1",))) == []


def test_a_model_of_which_nothing_is_known_to_serve_is_full():
    """Its datacenters are silent: nobody but others can answer."""
    watched = Watched()
    assert watched.after(0, load(0, slots=0)) == []
    assert watched.after(61, load(0, slots=0)) == [Add("m", "a")]


def test_what_overflowed_is_drained_when_the_rest_has_long_been_enough():
    watched = Watched()
    quiet = load(30, slots=150, extra=("e1",))
    watched.after(0, quiet)
    assert watched.after(599, quiet) == []
    assert watched.after(2, quiet) == [Remove("m", "e1")]
    assert watched.after(1, load(30, slots=100)) == []


def test_deployments_that_do_not_say_their_load_make_a_model_neither_full_nor_idle():
    watched = Watched()
    silent = load(0, slots=150, extra=("e1",), unknown=150)
    for _ in range(3):
        assert watched.after(601, silent) == []
    some = load(90, slots=150, extra=("e1",), unknown=50)  # 140 at most
    for _ in range(3):
        assert watched.after(601, some) == []
    assert watched.after(0, load(10, slots=150, extra=("e1",), unknown=20)) == []
    assert watched.after(601, load(10, slots=150, extra=("e1",), unknown=20)) == [Remove("m", "e1")]
    watched.after(0, load(90, unknown=10))  # full, whatever the silent ones do
    assert watched.after(61, load(90, unknown=10)) == [Add("m", "a")]


def test_a_load_between_the_bounds_changes_nothing_for_ever():
    watched = Watched()
    for _ in range(100):
        assert watched.after(100, load(60, slots=150, extra=("e1",))) == []


@settings(deadline=None)
@given(st.lists(st.integers(0, 300), min_size=5, max_size=60))
def test_a_constant_load_never_makes_it_swing(history):
    """After any history a constant load leads to at most one kind of change."""
    watched = Watched(OverflowSettings(full_seconds=10, idle_seconds=20, gpu_budget=32))
    extra: list[str] = []
    last = history[-1]
    kinds = []
    for position, in_flight in enumerate([*history, *[last] * 60]):
        slots = 100 + 50 * len(extra)
        one = load(min(in_flight, slots), slots=slots, extra=tuple(extra))
        for decision in watched.after(5, one, free={"a": 100}):
            if isinstance(decision, Add):
                extra.append(f"e{position}")
            else:
                extra.remove(decision.deployment)
            if position >= len(history) + 10:  # what came before may still have its effect
                kinds.append(type(decision))
    assert len(set(kinds)) <= 1


@pytest.mark.parametrize(
    "wrong",
    [{"full": 0.3}, {"idle": 0.0}, {"full": 1.2}, {"gpu_budget": -1}, {"ready_seconds": -1}],
)
def test_settings_that_would_swing_are_refused(wrong):
    with pytest.raises(ValueError, match="overflow"):
        OverflowSettings(**wrong)
