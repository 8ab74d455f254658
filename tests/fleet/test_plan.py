"""What is derived, against arithmetic by hand and published figures."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from prime_inference.cli.main import app
from prime_inference.fleet.catalogue import find_model, find_spec, read_spec
from prime_inference.fleet.errors import PlanImpossible
from prime_inference.fleet.formats import kv_bytes_per_token, latent_row_bytes, row_bytes
from prime_inference.fleet.hardware import GPUS
from prime_inference.fleet.memory import gpu_memory, replica_tokens
from prime_inference.fleet.parallelism import Parallelism
from prime_inference.fleet.parameters import active, count
from prime_inference.fleet.plan import make_plan, usable_tokens
from prime_inference.fleet.plan_table import sentences, tables
from prime_inference.kvcache.row import ROW_BYTES

GLM = find_model("glm-5.3")


def plan_of(name, **changes):
    spec = read_spec(name, changes=changes)
    return make_plan(spec, find_model(spec.model.architecture))


def ratio(plan, start):
    return next(one for one in plan.ratios if one.what.startswith(start))


def test_a_row_shrinks_from_576_to_352_bytes():
    assert latent_row_bytes(512, 64, "fp8") == 576
    assert latent_row_bytes(512, 64, "nvfp4") == 352 == ROW_BYTES
    assert latent_row_bytes(512, 64, "bf16") == 1152
    assert latent_row_bytes(512, 64, "fp8_ds_mla") == 656


def test_bytes_per_token_are_the_ones_that_engines_report():
    # vLLM's own measure of its 656-byte rows in 79 layers with 22 indexers
    assert kv_bytes_per_token(GLM, "fp8_ds_mla") == 54_728
    assert kv_bytes_per_token(GLM, "fp8") == 48_408
    assert kv_bytes_per_token(GLM, "nvfp4") == 30_712


def test_a_grouped_query_row_is_keys_and_values_of_its_heads():
    qwen = find_model("qwen3-0.6b")
    assert row_bytes(qwen, "bf16") == 8 * 2 * 128 * 2
    assert kv_bytes_per_token(qwen, "bf16") == 28 * 4096


def test_parameters_add_up_to_the_published_sizes():
    assert count(GLM, draft=False).total / 1e9 == pytest.approx(744, rel=0.002)  # "744B"
    assert active(GLM) / 1e9 == pytest.approx(40, rel=0.02)  # "A40B"
    assert count(find_model("smollm2-135m")).total / 1e6 == pytest.approx(134.5, rel=0.005)
    assert count(find_model("qwen3-0.6b")).total / 1e9 == pytest.approx(0.596, rel=0.01)


def test_the_gain_of_nvfp4_brackets_the_published_one():
    gain = ratio(plan_of("glm-5.3-gb200"), "cached tokens")
    assert (gain.low, gain.high) == pytest.approx((1.463, 1.576), abs=5e-4)
    assert gain.low < 1.63 / 1.09 < gain.high


def test_dep8_over_tep8_brackets_roughly_five_times():
    plan = plan_of("glm-5.3-gb200")
    gain = ratio(plan, "usable cache of 8 GPUs")
    assert gain.low < 5 < gain.high
    assert len(gain.terms) == 4  # copies, weights, common prefixes, placement
    by_name = {one.parallel: one for one in plan.candidates["prefill"]}
    apart, together = by_name["DEP8"], by_name["TEP8"]
    assert gain.high == pytest.approx(apart.usable_high / together.usable_high)
    assert apart.memory.weights > together.memory.weights  # the price of eight different caches


def test_the_spec_of_the_catalogue_has_what_the_plan_chooses():
    for name in ("glm-5.3-gb200", "glm-5.3-h200", "qwen3-0.6b"):
        for choice in plan_of(name).choices:
            assert choice.chosen == choice.in_spec, choice.reason


@pytest.mark.parametrize("name", ["glm-5.3-gb200", "glm-5.3-h200", "qwen3-0.6b"])
def test_a_spec_of_the_catalogue_takes_no_more_requests_than_its_plan_has_room_for(name):
    spec = find_spec(name)
    plan = plan_of(name)
    role, pool = list(spec.topology.pools.items())[-1]  # decode, where pools are apart
    one = next(each for each in plan.candidates[role] if each.parallel == pool.parallel)
    each = one.usable_high // (plan.history_tokens + plan.turn_tokens)
    assert spec.limits.slots <= pool.replicas * each


def test_a_tight_first_token_target_trades_cache_for_speed():
    choice = plan_of("glm-5.3-gb200", slo={"first_token_ms": 100}).choices[0]
    assert choice.chosen.startswith(("TP", "TEP"))


@pytest.mark.parametrize(
    "changes",
    [
        {"slo": {"history_tokens": 0}},
        {"slo": {"history_tokens": -5, "turn_tokens": 5}},
        {"slo": {"first_token_ms": math.nan}},
        {"kv": {"block_tokens": 0}},
        {"kv": {"memory_fraction": math.nan}},
    ],
)
def test_nothing_is_derived_from_numbers_that_make_no_sense(changes):
    with pytest.raises(PlanImpossible, match="is not within"):
        plan_of("mocker", **changes)


def test_an_unreachable_target_is_said_to_be_missed():
    choice = plan_of("glm-5.3-gb200", slo={"first_token_ms": 1}).choices[0]
    assert "no topology meets the targets" in choice.reason


def test_half_the_step_halves_the_wait_for_it():
    def first(tokens):
        changed = {"prefill": {"tokens_per_step": tokens}}
        plan = plan_of("glm-5.3-gb200", topology=changed, slo={"turn_tokens": 4096})
        found = next(one for one in plan.candidates["prefill"] if one.parallel == "DEP8")
        return found.first_token_seconds

    whole = first(8192)  # its own step also computes what it does not fill
    assert first(4096) == pytest.approx(whole / 2)


def test_descriptors_of_a_transfer_follow_from_the_layout():
    plan = plan_of("glm-5.3-gb200")
    by_layout = {one.layout: one for one in plan.transfers}
    blocks = math.ceil(146_000 / 64)
    assert by_layout["LBHNC"].descriptors == 101 * blocks
    assert by_layout["BLHNC"].descriptors == blocks
    assert by_layout["BLHNC"].descriptor_bytes == 64 * 30_712
    assert by_layout["LBHNC"].nbytes == by_layout["BLHNC"].nbytes
    link = "nvlink (cuda_ipc)"
    saved = by_layout["LBHNC"].seconds[link] - by_layout["BLHNC"].seconds[link]
    assert saved == pytest.approx(100 * blocks * 4.067e-6)


def test_layouts_of_many_heads_differ_too():
    by_layout = {one.layout: one.descriptors for one in plan_of("qwen3-0.6b").transfers}
    assert by_layout["LHBNC"] == 8 * by_layout["LBHNC"] == 8 * 28 * by_layout["BLHNC"]


def test_a_model_that_fits_nowhere_is_refused_with_the_reasons():
    with pytest.raises(PlanImpossible, match="do not fit"):
        plan_of("glm-5.3-h200", hardware={"gpu": "h100"})


@settings(deadline=None)
@given(st.integers(1, 10**8), st.integers(0, 4), st.integers(1, 10**6))
def test_usable_cache_lies_between_one_rank_and_all(tokens, power, history):
    parallel = Parallelism("DEP", 2**power)
    memory = gpu_memory(
        GLM,
        GPUS["gb200"],
        Parallelism("DEP", 8),
        routed="nvfp4",
        other="bf16",
        kv="nvfp4",
        memory_fraction=0.9,
        tokens_per_step=4096,
    )
    import dataclasses

    memory = dataclasses.replace(memory, cache=tokens * memory.kv_bytes_per_token)
    low, high = usable_tokens(memory, parallel, history)
    assert 0 <= low <= high <= replica_tokens(memory, parallel)
    if parallel.data == 1:
        assert low == high == tokens


def test_memory_of_a_gpu_adds_up():
    for candidates in plan_of("glm-5.3-gb200").candidates.values():
        for one in candidates:
            memory = one.memory
            parts = memory.unused + memory.weights + memory.activations + memory.cache
            assert parts == memory.total


def test_the_command_prints_tables_and_json():
    runner = CliRunner()
    shown = runner.invoke(app, ["inference", "plan", "glm-5.3-gb200", "--plain"])
    assert shown.exit_code == 0, shown.output
    assert "DEP8" in shown.output
    assert "roughly five times" in shown.output
    asked = ["inference", "plan", "qwen3-0.6b", "--history-tokens", "9000", "-o", "json"]
    document = json.loads(runner.invoke(app, asked).output)
    assert document["history_tokens"] == 9000
    assert document["candidates"]["aggregated"][0]["parallel"] == "TP1"


def test_the_command_takes_another_model_and_refuses_an_unknown_one(tmp_path):
    runner = CliRunner()
    asked = ["inference", "plan", "glm-5.3-gb200", "--model", "qwen4", "-o", "json"]
    refused = runner.invoke(app, asked)
    assert refused.exit_code == 1
    assert "no model 'qwen4'" in refused.output


def test_the_plot_is_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    from prime_inference.fleet.plan_plot import draw

    draw(plan_of("glm-5.3-gb200"), tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_text_of_a_plan_names_every_candidate_and_choice():
    plan = plan_of("glm-5.3-gb200")
    text = "\n".join(
        [cell for table in tables(plan) for row in table.rows for cell in row]
        + list(sentences(plan))
    )
    for candidates in plan.candidates.values():
        assert all(one.parallel in text for one in candidates)
    assert all(choice.reason in text for choice in plan.choices)
    assert find_spec("glm-5.3-gb200").model.id in text or plan.model == "z-ai/glm-5.3"
