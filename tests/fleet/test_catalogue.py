"""Specs of the catalogue, and what is refused."""

from __future__ import annotations

import shutil

import pytest
from msgspec.structs import replace

from prime_inference.fleet.architecture import parse_architecture
from prime_inference.fleet.catalogue import (
    find_model,
    find_spec,
    model_names,
    read_spec,
    spec_names,
)
from prime_inference.fleet.check import reasons_against
from prime_inference.fleet.errors import SpecImpossible, SpecMalformed
from prime_inference.fleet.parallelism import Parallelism


def reasons(name, **changes):
    spec = read_spec(name, changes=changes)
    return "\n".join(reasons_against(spec, find_model(spec.model.architecture)))


@pytest.mark.parametrize("name", spec_names())
def test_every_spec_of_the_catalogue_can_work(name):
    spec = find_spec(name)
    assert spec.name == name
    assert spec.topology.pools


def test_the_catalogue_has_the_big_model_on_both_kinds_of_hardware():
    blackwell, hopper = find_spec("glm-5.3-gb200"), find_spec("glm-5.3-h200")
    assert blackwell.model.id == hopper.model.id == "z-ai/glm-5.3"
    prefill = blackwell.topology.prefill
    assert prefill is not None
    assert (prefill.parallel, prefill.tokens_per_step) == ("DEP8", 4096)
    assert (blackwell.kv.format, blackwell.kv.layout.value) == ("nvfp4", "BLHNC")
    assert hopper.gpus == hopper.hardware.gpus == 8


@pytest.mark.parametrize("name", model_names())
def test_every_model_of_the_catalogue_has_a_shape(name):
    assert find_model(name).layers > 0


def test_an_unknown_key_names_the_nearest_known_one():
    with pytest.raises(SpecMalformed, match=r"kv: there is no key layuot\. Did you mean layout\?"):
        read_spec("mocker", changes={"kv": {"layuot": "BLHNC"}})
    with pytest.raises(
        SpecMalformed, match=r"topology\.prefill: there is no key replica\..*replicas"
    ):
        read_spec("mocker", changes={"topology": {"prefill": {"replica": 2}}})


def test_a_value_of_the_wrong_kind_is_refused_by_its_path():
    with pytest.raises(SpecMalformed, match=r"at `limits\.slots`"):
        read_spec("mocker", changes={"limits": {"slots": "many"}})


def test_an_unknown_spec_names_the_nearest():
    with pytest.raises(SpecMalformed, match=r"Did you mean mocker"):
        read_spec("moker")


def test_a_spec_file_finds_a_model_beside_it(tmp_path):
    from importlib import resources

    folder = resources.files("prime_inference.fleet.catalogue")
    (tmp_path / "mine").mkdir()
    with resources.as_file(folder / "models" / "smollm2-135m.json") as file:
        shutil.copy(file, tmp_path / "mine" / "config.json")
    with resources.as_file(folder / "specs" / "mocker.toml") as file:
        text = file.read_text().replace('"smollm2-135m"', '"mine/config.json"')
    (tmp_path / "mine.toml").write_text(text)
    assert find_spec("mine.toml", tmp_path).name == "mine"


def test_all_reasons_are_given_at_once():
    with pytest.raises(SpecImpossible) as refused:
        find_spec(
            "glm-5.3-gb200",
            changes={
                "hardware": {"gpu": "h100"},
                "kv": {"block_tokens": 16},
                "limits": {"slots": 0},
            },
        )
    assert len(refused.value.reasons) > 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"topology": {"prefill": {"parallel": "TP6"}}}, "64 heads are not divisible by 6"),
        ({"topology": {"prefill": {"parallel": "DEP12"}}}, "256 experts are not divisible by 12"),
        ({"topology": {"prefill": {"parallel": "PP2"}}}, "'PP2' is none of TPn, TEPn, DEPn"),
        ({"topology": {"prefill": {"parallel": "DEP2"}}}, "do not fit"),
        ({"topology": {"prefill": {"parallel": "DEP128"}}}, "more than an NVLink domain of 72"),
        ({"kv": {"block_tokens": 128}}, "sparse attention has pages of 64"),
        ({"kv": {"transfer": "none"}}, "no way to the prefilled KV"),
        ({"hardware": {"gpu": "h200"}}, "kv.format 'nvfp4' needs sm_100, or sm_90 with"),
        ({"hardware": {"gpu": "a100"}}, "is none of h100"),
        ({"hardware": {"gpus": 8}}, "the pools take 64 GPUs, hardware.gpus has 8"),
        ({"kv": {"host_tier": {"gib_per_gpu": 400}}}, "exceed a node's 894 GiB"),
        ({"model": {"context_tokens": 2_000_000}}, "1048576 that glm-5.3 was made for"),
        ({"topology": {"workers": {"parallel": "DEP8"}}}, "either `workers`, or both"),
        ({"tools": {"call_parser": "glm"}}, "is not one of Dynamo's"),
        ({"tools": {"call_parser": ""}}, "tags are made for a call format"),
        ({"router": {"host_hit_weight": 1.5}}, "no block is worth more than on the GPU"),
        ({"topology": {"prefill": {"tokens_per_step": 32}}}, "less than a block of 64 tokens"),
    ],
)
def test_a_combination_that_cannot_work_is_refused_with_its_reason(changes, reason):
    assert reasons("glm-5.3-gb200") == ""
    assert reason in reasons("glm-5.3-gb200", **changes)


@pytest.mark.parametrize(
    ("kv", "reason"),
    [
        ({"layout": "BLHNC"}, "vLLM's kernels on CPUs know LBHNC only"),
        ({"host_tier": {"gib_per_gpu": 1}}, "waits for CUDA's events"),
    ],
)
def test_what_vllm_cannot_do_on_cpus_is_refused(kv, reason):
    assert reasons("vllm-cpu") == ""
    assert reason in reasons("vllm-cpu", kv=kv)
    assert reasons("mocker", kv=kv) == ""  # which plays any of them


def test_nvfp4_rows_on_hopper_need_the_plugin_that_writes_them():
    kv = {"format": "nvfp4", "hopper_plugin": True}
    assert reasons("glm-5.3-h200", kv=kv) == ""
    assert "needs sm_100" in reasons("glm-5.3-h200", kv=kv | {"hopper_plugin": False})


def test_rows_of_latent_attention_are_not_for_grouped_queries():
    assert "which qwen3-0.6b has not" in reasons("qwen3-0.6b", kv={"format": "nvfp4"})


def test_a_block_major_pool_needs_blocks_that_are_whole_rows():
    spec = read_spec("glm-5.3-gb200")
    model = find_model("glm-5.3")
    assert model.indexer is not None
    import dataclasses

    odd = dataclasses.replace(model, indexer=dataclasses.replace(model.indexer, layers=21))
    # 64 tokens x (79 x 352 + 21 x 132): the index keys of 21 layers are 504 rows, of 22 are 528
    assert not any("kv.layout" in reason for reason in reasons_against(spec, odd))
    small = replace(spec, kv=replace(spec.kv, block_tokens=1))
    assert any("no multiple of the row" in reason for reason in reasons_against(small, odd))


def test_grouped_query_heads_and_gpus_divide_each_other():
    assert "8 KV heads and 3 GPUs" not in reasons("qwen3-0.6b")
    changed = reasons(
        "qwen3-0.6b", topology={"workers": {"parallel": "TP16"}}, hardware={"gpus": 16}
    )
    assert "more than an NVLink domain of 8" in changed
    assert "no experts to deal out; use TP2" in reasons(
        "qwen3-0.6b", topology={"workers": {"parallel": "TEP2"}}
    )


@pytest.mark.parametrize("text", ["", "TP", "TP0", "tp8", "TP8 ", "DEP-8", "TEP99999"])
def test_a_parallelism_is_a_kind_and_a_number(text):
    with pytest.raises(ValueError, match="none of TPn"):
        Parallelism.parse(text)


def test_indexers_are_counted_as_the_config_says():
    by_list = parse_architecture(
        b'{"architectures": ["GlmMoeDsaForCausalLM"], "qk_rope_head_dim": 64,'
        b'"qk_nope_head_dim": 64, "v_head_dim": 64, "hidden_size": 64, "num_hidden_layers": 3,'
        b' "num_attention_heads": 2, "vocab_size": 8,'
        b'"intermediate_size": 8, "max_position_embeddings": 64, "kv_lora_rank": 32,'
        b'"index_n_heads": 2, "index_head_dim": 128, "index_topk": 8,'
        b'"indexer_types": ["full", "shared", "full"]}',
        "tiny",
    )
    assert by_list.indexer is not None
    assert by_list.indexer.layers == 2
    model = find_model("glm-5.3")
    assert model.indexer is not None
    assert model.indexer.layers == 22  # 21 of 78, and the draft layer's
