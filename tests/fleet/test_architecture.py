"""Configs of known families against what their makers publish, and what is refused."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest

from prime_inference.fleet.architecture import FAMILIES, Architecture, parse_architecture
from prime_inference.fleet.errors import FleetError, SpecMalformed
from prime_inference.fleet.formats import kv_bytes_per_token
from prime_inference.fleet.parameters import active, count

MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
    "intermediate_size": 14336, "max_position_embeddings": 32768, "num_local_experts": 8,
    "num_experts_per_tok": 2,
}  # fmt: skip
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "hidden_size": 2880, "num_hidden_layers": 36,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
    "intermediate_size": 2880, "max_position_embeddings": 131072, "num_local_experts": 128,
    "num_experts_per_tok": 4, "experts_per_token": 4, "sliding_window": 128,
}  # fmt: skip
QWEN2_MOE = {
    "architectures": ["Qwen2MoeForCausalLM"], "hidden_size": 3584, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 151936,
    "intermediate_size": 18944, "moe_intermediate_size": 2560, "num_experts": 64,
    "num_experts_per_tok": 8, "shared_expert_intermediate_size": 20480, "decoder_sparse_step": 1,
    "max_position_embeddings": 32768,
}  # fmt: skip
QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
    "num_experts_per_tok": 8, "max_position_embeddings": 40960, "mlp_only_layers": [],
}  # fmt: skip
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128, "num_nextn_predict_layers": 1, "max_position_embeddings": 163840,
}  # fmt: skip
DEEPSEEK_V2_LITE = {
    "architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 27,
    "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 102400,
    "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64,
    "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1,
    "kv_lora_rank": 512, "q_lora_rank": None, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128, "max_position_embeddings": 163840,
}  # fmt: skip
LLAMA_405B = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 16384, "num_hidden_layers": 126,
    "num_attention_heads": 128, "num_key_value_heads": 8, "vocab_size": 128256,
    "intermediate_size": 53248, "max_position_embeddings": 131072,
}  # fmt: skip
GLM = json.loads(
    (resources.files("prime_inference.fleet.catalogue") / "models" / "glm-5.3.json").read_text()
)


def parsed(config: dict[str, Any]) -> Architecture:
    return parse_architecture(json.dumps(config).encode(), "it")


@pytest.mark.parametrize(
    ("config", "total", "used", "with_look_up"),
    [
        (MIXTRAL, 46.7, 12.9, True),
        (GPT_OSS, 116.8, 5.13, False),
        (QWEN2_MOE, 57.4, 14.2, True),
        (QWEN3_MOE, 30.5, 3.3, True),
        (DEEPSEEK_V3, 671, 37, False),
        (DEEPSEEK_V2_LITE, 15.7, 2.4, False),
        (LLAMA_405B, 405, 405, True),
    ],
    ids=["Mixtral-8x7B", "gpt-oss-120b", "Qwen2-57B-A14B", "Qwen3-30B-A3B", "DeepSeek-V3",
         "DeepSeek-V2-Lite", "Llama-3.1-405B"],
)  # fmt: skip
def test_parameters_are_the_published_ones(
    config: dict[str, Any], total: float, used: float, with_look_up: bool
) -> None:
    """Some count the look-up of a token's embedding as active, some do not."""
    model = parsed(config)
    assert count(model, draft=False).total / 1e9 == pytest.approx(total, rel=0.003)
    look_up = model.vocabulary * model.hidden if with_look_up else 0
    assert (active(model) + look_up) / 1e9 == pytest.approx(used, rel=0.04)


def test_cached_bytes_do_not_depend_on_experts() -> None:
    assert kv_bytes_per_token(parsed(MIXTRAL), "bf16") == 32 * 8 * 2 * 128 * 2
    assert kv_bytes_per_token(parsed(GPT_OSS), "bf16") == 36 * 8 * 2 * 64 * 2


def test_dense_layers_between_sparse_ones_are_counted_as_such() -> None:
    every_other = parsed(QWEN2_MOE | {"decoder_sparse_step": 2})
    assert (every_other.dense_layers, every_other.expert_layers) == (14, 14)
    named = parsed(QWEN2_MOE | {"mlp_only_layers": [0, 27]})
    assert named.dense_layers == 2


@pytest.mark.parametrize(
    "architectures",
    [[], ["Llama4ForConditionalGeneration"], ["Gemma2ForCausalLM"], ["MambaForCausalLM"]],
)
def test_what_is_not_known_is_refused(architectures: list[str]) -> None:
    with pytest.raises(SpecMalformed, match="nothing is known of the architecture"):
        parsed(MIXTRAL | {"architectures": architectures})


def test_the_nearest_known_one_is_named() -> None:
    with pytest.raises(SpecMalformed, match=r"Did you mean MixtralForCausalLM"):
        parsed(MIXTRAL | {"architectures": ["MixtralForCausualLM"]})


@pytest.mark.parametrize(
    ("config", "change", "reason"),
    [
        (LLAMA_405B, {"num_experts": 8, "num_experts_per_tok": 1}, "experts, which are not count"),
        (MIXTRAL, {"num_local_experts": 0}, "it has no experts"),
        (MIXTRAL, {"num_experts_per_tok": 9}, "num_experts_per_tok"),
        (QWEN2_MOE, {"moe_intermediate_size": 0}, "have no width"),
        (LLAMA_405B, {"num_key_value_heads": 7}, "do not divide"),
        (DEEPSEEK_V3, {"kv_lora_rank": None}, "latent"),
        (DEEPSEEK_V3, {"v_head_dim": 0}, "lacks dimensions"),
        (DEEPSEEK_V3, {"first_k_dense_replace": 62}, "more layers are dense"),
        (GLM, {"index_head_dim": 64}, "index keys are not 128 wide"),
        (GLM, {"index_topk_freq": 0}, "index_topk_freq"),
        (LLAMA_405B, {"num_hidden_layers": 0}, "num_hidden_layers"),
        (LLAMA_405B, {"num_hidden_layers": 10**9}, "num_hidden_layers"),
        (LLAMA_405B, {"hidden_size": -1}, "hidden_size"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(
    config: dict[str, Any], change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(SpecMalformed, match=reason):
        parsed(config | change)


@pytest.mark.parametrize(
    "data", [b"", b"[1]", b"{}", b"\xff\xfe", b"[" * 200_000, b'{"a": "\xff"}']
)
def test_what_is_no_config_is_refused(data: bytes) -> None:
    with pytest.raises(SpecMalformed, match="it is no model's"):
        parse_architecture(data, "it")


@pytest.mark.parametrize("config", [MIXTRAL, QWEN2_MOE, DEEPSEEK_V3, GLM])
def test_any_number_in_a_config_is_taken_or_refused_with_a_reason(config: dict[str, Any]) -> None:
    for field in config:
        values: tuple[object, ...] = (0, -1, 1, 3, 2**31, 2**70, 0.5, None, "x", [], {})
        for value in values:
            try:
                model = parsed(config | {field: value})
            except FleetError:
                continue
            counted = count(model)
            assert min(counted.attention, counted.embeddings, active(model)) > 0
            assert min(counted.routed, counted.dense) >= 0
            assert kv_bytes_per_token(model, "bf16") > 0


def test_every_model_of_the_catalogue_is_of_a_known_family() -> None:
    folder = resources.files("prime_inference.fleet.catalogue") / "models"
    for file in folder.iterdir():
        assert set(json.loads(file.read_text())["architectures"]) <= set(FAMILIES)
