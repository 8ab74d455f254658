"""Names near one that does not exist."""

from __future__ import annotations

from prime_inference.domain.suggestions import did_you_mean, nearest

MODELS = ["z-ai/glm-5.3", "z-ai/glm-4.7", "meta-llama/llama-3.1-70b-instruct"]


def test_the_nearest_name_comes_first():
    assert nearest("z-ai/glm5.3", MODELS)[0] == "z-ai/glm-5.3"


def test_case_does_not_matter_and_the_real_spelling_is_given():
    assert nearest("Z-AI/GLM-5.3", MODELS)[0] == "z-ai/glm-5.3"


def test_nothing_similar_gives_nothing():
    assert nearest("qqqq", MODELS) == []
    assert did_you_mean("qqqq", MODELS) == ""


def test_a_hint_is_a_sentence():
    assert did_you_mean("llama-3.1-70b", MODELS).startswith(" Did you mean meta-llama/")


def test_a_megabyte_of_name_is_answered_like_a_short_one():
    assert nearest("z" * 1_000_000, MODELS) == []
